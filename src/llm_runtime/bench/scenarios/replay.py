"""Ten minutes of each Azure trace on the real embedded engine, and the simulator's forecast of them.

The traces come from services on large GPUs; this engine computes 90 to 270 prompt tokens per second. So
the load is made smaller by three factors, which are fixed here and stand in the result: the share of
arrivals kept, the divisor of all lengths, and the speed of the clock. Thinning keeps the order and much of
the burstiness of arrivals, dividing keeps the ratio of prompts to answers; neither keeps the proportion of
fixed costs, so this shows that the runtime carries recorded traffic, not what a GPU would do with it.

Server and engine stand back for the client: the engine wants all cores, and the client, which needs hardly
any of one, has to send on time.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Replay, Target, TraceFile, TrafficClass
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import RunResult, run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.sim.calibrate import Effort, Measured, compared, measured_model, simulated_figures
from llm_runtime.bench.sim.unloaded import Multiples, Unloaded, objectives
from llm_runtime.bench.summary import summarise
from llm_runtime.bench.trace_data import trace_path
from llm_runtime.bench.traces import TraceEntry, load_trace
from llm_runtime.bench.workload import TraceSessions

NUM_SLOTS, BATCH_TOKENS, CONTEXT_TOKENS = 8, 16, 2048
SETTINGS = {
    "native_backend_concurrency": NUM_SLOTS,
    "n_ctx": CONTEXT_TOKENS,
    "engines.llama_cpp.n_batch": BATCH_TOKENS,
}
WINDOW_S, QUICK_WINDOW_S = 600.0, 120.0
LENGTH_DIVISOR = 32
TIME_SCALE = 0.17
SEED = 0
SLO = Multiples(ttft=5.0, e2e=5.0)
"""Of what the trace's median request takes alone."""
MODEL_EFFORT = Effort(prompts=(16, 64, 160), repeats=2, sizes=(1, 2, 4, 8), step_tokens=32)
NOT_KEPT = ("environment", "samples")


@dataclass(frozen=True, slots=True)
class Case:
    """keep: share of arrivals, for four to eight tenths of what the engine can do, as the machine has it.
    median: prompt and answer tokens of the trace's median request."""

    file: str
    keep: float
    median: tuple[int, int]

    def trace(self, window_s: float) -> TraceFile:
        return TraceFile(
            str(trace_path(self.file)),
            time_scale=TIME_SCALE,
            length_scale=1 / LENGTH_DIVISOR,
            keep=self.keep,
            duration_s=window_s,
        )


CASES: Mapping[str, Case] = {
    "conv": Case("azure_llm_2023_conv.csv", 0.036, (1020, 129)),
    "code": Case("azure_llm_2023_code.csv", 0.050, (1469, 13)),
}


async def measure(quick: bool) -> Result:
    window_s = QUICK_WINDOW_S if quick else WINDOW_S
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    async with launched(serve_command("llama.cpp", SETTINGS), {}, "/health/ready", stands_back=True) as url:
        target = Target(url, ignore_eos=True)
        model = await measured_model(
            target, num_slots=NUM_SLOTS, batch_tokens=BATCH_TOKENS, effort=MODEL_EFFORT
        )
        for name, case in CASES.items():
            alone = await _alone(target, case)
            plan = plan_of(target, case, window_s, alone)
            result = await run(plan)
            found, detail = _case(case, window_s, result, model)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
            details[name] = {**detail, "alone": asdict(alone)}
    figures["failed"] = sum(figures[f"{name}_failed"] or 0.0 for name in CASES)
    figures["worst_schedule_lag_p99_ms"] = max(
        figures[f"{name}_schedule_lag_p99_ms"] or 0.0 for name in CASES
    )
    for figure in ("mean_e2el_ms", "output_throughput"):
        figures[f"worst_model_error_{figure}"] = max(
            abs(details[name]["model_errors"][figure]) for name in CASES
        )
    return Result(figures, {"model": plain_model(model), **details})


def plan_of(target: Target, case: Case, window_s: float, alone: Unloaded) -> Plan:
    return Plan(target, Replay(case.trace(window_s)), limits=Limits(), slo=objectives(SLO, alone), seed=SEED)


async def _alone(target: Target, case: Case) -> Unloaded:
    """What the trace's median request takes on the idle server: medians of a few, one after the other."""
    prompt, answer = (max(1, round(tokens / LENGTH_DIVISOR)) for tokens in case.median)
    traffic = TrafficClass(input_tokens=Fixed(prompt), output_tokens=Fixed(answer))
    result = await run(Plan(target, ClosedLoop(1), (traffic,), Limits(requests=7)))
    records = metrics.measured(result.records)
    ttft_s, e2e_s = (statistics.median(metrics.values(records, of)) for of in (metrics.ttft_s, metrics.e2e_s))
    return Unloaded(ttft_s, e2e_s, (e2e_s - ttft_s) / max(1, answer - 1))


def _case(
    case: Case, window_s: float, result: RunResult, model: Measured
) -> tuple[dict[str, float | None], dict[str, Any]]:
    summary = summarise(result)
    records = metrics.measured(result.records)
    trace = case.trace(window_s)
    entries = load_trace(trace, SEED)
    whole = load_trace(replace(trace, keep=1.0, length_scale=1.0, time_scale=1.0), SEED)
    measured = compared(records)
    source = TraceSessions(entries, result.plan.traffic[0])
    simulated = simulated_figures(result.plan, source, records, model)
    lag_s = summary["client"]["schedule_lag_p99_s"]
    figures = {
        "requests": summary["num_prompts"],
        "failed": summary["failed"],
        "goodput_share": summary["goodput"]["share_of_all"],
        **{key: summary[key] for key in ("output_throughput", "total_token_throughput", "median_ttft_ms",
                                         "p90_ttft_ms", "median_e2el_ms", "p90_e2el_ms")},
        "schedule_lag_p99_ms": None if lag_s is None else 1e3 * lag_s,
    }  # fmt: skip
    details = {
        "factors": {"keep": case.keep, "length_divisor": LENGTH_DIVISOR, "time_scale": TIME_SCALE},
        "offered": shape(entries),
        "recorded": shape(whole),
        "model_errors": {key: simulated[key] / value - 1 for key, value in measured.items()},
        "measured": measured,
        "simulated": simulated,
        "summary": {key: value for key, value in summary.items() if key not in NOT_KEPT},
    }
    return figures, details


def shape(entries: Sequence[TraceEntry]) -> dict[str, float]:
    """Of a load: its size and how bursty it is. gap_cv: deviation of gaps by their mean; 1 is Poisson."""
    gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(entries)]
    return {
        "requests": len(entries),
        "span_s": entries[-1].at_s,
        "gap_cv": statistics.pstdev(gaps) / statistics.fmean(gaps),
        "mean_input_tokens": statistics.fmean(entry.input_tokens for entry in entries),
        "mean_output_tokens": statistics.fmean(entry.output_tokens for entry in entries),
    }


def plain_model(found: Measured) -> dict[str, Any]:
    return {**asdict(found.model), "alone_s": found.alone_s, **found.points}


SCENARIO = Scenario(
    name="replay",
    question="Does the runtime carry ten minutes of each Azure trace, made smaller for the embedded engine, "
    "without a failure, and does the simulator foresee what it makes of them?",
    workload={
        "cases": CASES, "window_s": WINDOW_S, "quick_window_s": QUICK_WINDOW_S,
        "length_divisor": LENGTH_DIVISOR, "time_scale": TIME_SCALE, "seed": SEED, "settings": SETTINGS,
        "server_stands_back": True,
        "model_effort": MODEL_EFFORT,
    },
    slos={"multiples_of_the_median_request_alone": SLO},
    bars=(
        Bar("failed", "<=", 0.0),
        Bar("worst_schedule_lag_p99_ms", "<=", 5.0),
        Bar("worst_model_error_output_throughput", "<=", 0.15, quick=False),
        Bar("worst_model_error_mean_e2el_ms", "<=", 0.25, quick=False),
    ),
    run=measure,
)  # fmt: skip
