"""An engine's model from measurements through a running server, and how far off the model then is.

Measured are the prefill rate, from single requests of different lengths, and the time of a step for each
number of sequences, from that many requests started together. Nothing is fitted to the runs it is judged
by: those have other lengths, other numbers of clients and arrivals of their own, and are simulated from
what the server said of their tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import ClosedLoop, Limits, Load, OpenLoop, Plan, Target, TrafficClass
from llm_runtime.bench.given import given_plan, play
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.run import run
from llm_runtime.bench.sim.config import ContinuousModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.curve import Curve, through
from llm_runtime.bench.sim.feed import PlanFeed
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.workload import Session, SessionSource, SyntheticSessions, Turn
from llm_runtime.core.errors import BackendError
from llm_runtime.scheduling.config import SchedulingConfig

COMPARED = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")


@dataclass(frozen=True, slots=True)
class Effort:
    """prompts: words of single requests; repeats: of each measurement; sizes: sequences at once."""

    prompts: tuple[int, ...] = (16, 64, 128, 256, 512)
    repeats: int = 3
    sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    step_tokens: int = 48
    heldout_requests: int = 60


@dataclass(frozen=True, slots=True)
class Calibration:
    """model: as measured. alone_s: what a request takes beyond its engine's work: the way there and back,
    and our own. errors: by held-out run and figure, simulated by measured less 1."""

    model: ContinuousModel
    alone_s: float
    errors: Mapping[str, Mapping[str, float]]
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """model and alone_s: as in `Calibration`. points: what they were made from."""

    model: ContinuousModel
    alone_s: float
    points: Mapping[str, Any]


async def calibrate(target: Target, *, num_slots: int, batch_tokens: int, effort: Effort) -> Calibration:
    """Raises BackendError when a request failed. target: asked to ignore the
    end of text, so that lengths are as ordered."""
    found = await measured_model(target, num_slots=num_slots, batch_tokens=batch_tokens, effort=effort)
    model, alone_s = found.model, found.alone_s
    errors: dict[str, Mapping[str, float]] = {}
    figures: dict[str, Any] = {}
    for name, plan in heldout_plans(target, model, effort).items():
        result = await run(plan)
        records = metrics.measured(result.records)
        measured = compared(records)
        source = SyntheticSessions(plan.traffic, plan.seed)
        simulated = simulated_figures(plan, source, records, found)
        errors[name] = {key: simulated[key] / value - 1 for key, value in measured.items()}
        figures[name] = {"measured": measured, "simulated": simulated}
    return Calibration(model, alone_s, errors, {**found.points, "heldout": figures})


async def measured_model(target: Target, *, num_slots: int, batch_tokens: int, effort: Effort) -> Measured:
    """The model alone, judged by nothing. Raises as `calibrate`."""
    prefill = await _prefill_points(target, effort)
    per_token_s, alone_s = fitted(prefill)
    steps = await _step_points(target, effort)
    model = ContinuousModel(
        num_slots=num_slots,
        step_s=through([(0.0, 0.0), *steps]),
        prefill_s_per_token=per_token_s,
        batch_tokens=batch_tokens,
    )
    return Measured(model, alone_s, {"prefill": prefill, "steps": steps})


# ---- measuring


async def _prefill_points(target: Target, effort: Effort) -> list[tuple[int, float]]:
    """(tokens computed, seconds to the first token) of single requests."""
    points: list[tuple[int, float]] = []
    for number in range(effort.repeats):
        for words in effort.prompts:
            (record,) = await _together(target, 1, words + number, 2)
            if record.first_token_at is not None and record.started_at is not None:
                points.append((computed_tokens(record), record.first_token_at - record.started_at))
    return points


async def _step_points(target: Target, effort: Effort) -> list[tuple[float, float]]:
    """(sequences, seconds of a step), the median of repeats."""
    points = []
    for size in effort.sizes:
        found = [step_s(await _together(target, size, 8, effort.step_tokens)) for _ in range(effort.repeats)]
        points.append((float(size), statistics.median(found)))
    return points


async def _together(target: Target, size: int, words: int, tokens: int) -> list[RequestRecord]:
    sessions = [Session(number, TrafficClass(), (Turn(words, tokens),), 0.0) for number in range(size)]
    records = await play(given_plan(target, sessions), sessions)
    if len(metrics.completed(records)) < size:
        failure = next(record for record in records if record.error)
        raise BackendError(f"a request failed while calibrating: {failure.error}")
    return records


def computed_tokens(record: RequestRecord) -> int:
    """Prompt tokens that were not in the engine's cache."""
    return max(1, (record.prompt_tokens or 0) - (record.cached_tokens or 0))


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, intercept) of the straight line of Theil and Sen: medians, so that a disturbed
    measurement does not bend it. Raises ValueError without two different abscissae."""
    slopes = [(y1 - y0) / (x1 - x0) for i, (x0, y0) in enumerate(points) for x1, y1 in points[:i] if x1 != x0]
    if not slopes:
        raise ValueError("a line needs two different points")
    slope = statistics.median(slopes)
    return slope, max(0.0, statistics.median(y - slope * x for x, y in points))


def step_s(records: Sequence[RequestRecord]) -> float:
    """The mean gap between tokens while all of them were decoding. Raises ValueError if they never were."""
    from_s = max(record.first_token_at or 0.0 for record in records)
    to_s = min(record.last_token_at or 0.0 for record in records)
    gaps = []
    for record in records:
        instants = [at for at in metrics.token_instants(record) if from_s <= at <= to_s]
        gaps += [later - earlier for earlier, later in pairwise(instants)]
    if not gaps:
        raise ValueError("the sequences never decoded together")
    return statistics.fmean(gaps)


# ---- judging


def heldout_plans(target: Target, model: ContinuousModel, effort: Effort) -> dict[str, Plan]:
    """Mixed lengths in closed loops of fewer, as many and more clients than slots, and an open loop."""
    traffic = (TrafficClass(input_tokens=Uniform(8, 96), output_tokens=Uniform(4, 40)),)
    limits = Limits(requests=effort.heldout_requests)
    slots = model.num_slots
    full_s = 52 * model.prefill_s_per_token + 22 * model.step_s(slots) / slots
    loads: dict[str, Load] = {
        "closed_half": ClosedLoop(max(1, slots // 2)),
        "closed_full": ClosedLoop(slots),
        "closed_double": ClosedLoop(2 * slots),
        "open": OpenLoop(0.6 / full_s),
    }
    plans = {}
    for seed, (name, load) in enumerate(loads.items()):
        plans[name] = Plan(target, load, traffic, limits, seed=1000 + seed, tokens_per_word=1.3)
    return plans


class CountedSessions:
    """Sessions of a plan with the lengths that the server counted. Implements `SessionSource`."""

    def __init__(self, source: SessionSource, records: Sequence[RequestRecord]) -> None:
        self._source = source
        self._turns = {
            record.session: Turn(computed_tokens(record), record.completion_tokens or 1) for record in records
        }

    def session(self, number: int) -> Session | None:
        session = self._source.session(number)
        turn = self._turns.get(number)
        return session if session is None or turn is None else replace(session, turns=(turn,))


def simulated_figures(
    plan: Plan, source: SessionSource, records: Sequence[RequestRecord], found: Measured
) -> dict[str, float]:
    """What the model makes of a plan whose requests had the lengths that the server counted."""
    config = SimConfig((ReplicaConfig(found.model),), network_s=found.alone_s / 2)
    feed = PlanFeed(plan, CountedSessions(source, records))
    return compared(simulate(config, feed, scheduled(SchedulingConfig())).records)


def compared(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Without the TPOT where every answer had one token."""
    done = metrics.completed(records)
    if not done:
        raise BackendError("no request of a held-out run was answered")
    means = {
        "mean_ttft_ms": metrics.values(done, metrics.ttft_s),
        "mean_tpot_ms": metrics.values(done, metrics.tpot_s),
        "mean_e2el_ms": metrics.values(done, metrics.e2e_s),
    }
    figures = {name: 1e3 * statistics.fmean(values) for name, values in means.items() if values}
    span_s = max(record.finished_at or 0.0 for record in done)
    figures["output_throughput"] = sum(record.completion_tokens or 0 for record in done) / span_s
    return figures


# ---- as a file


def as_json(calibration: Calibration) -> dict[str, Any]:
    model = calibration.model
    return {
        "model": {
            "num_slots": model.num_slots,
            "step_s": [list(point) for point in model.step_s.points],
            "prefill_s_per_token": model.prefill_s_per_token,
            "batch_tokens": model.batch_tokens,
        },
        "alone_s": calibration.alone_s,
        "errors": calibration.errors,
        **calibration.details,
    }


def model_of(body: Mapping[str, Any]) -> ContinuousModel:
    """The model of a calibration that `as_json` wrote. Raises KeyError or TypeError for something else."""
    model = body["model"]
    return ContinuousModel(
        num_slots=model["num_slots"],
        step_s=Curve(tuple((float(x), float(y)) for x, y in model["step_s"])),
        prefill_s_per_token=model["prefill_s_per_token"],
        batch_tokens=model["batch_tokens"],
    )
