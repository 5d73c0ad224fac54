"""From turns to figures: what each participant cost in each round, and over all rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.overhead.participants import DIRECT, OURS
from benchmarks.overhead.phase import Result
from benchmarks.overhead.plan import METRICS, PhaseName
from benchmarks.overhead.ratios import Estimate, Values, estimate, paired_difference, paired_ratio
from benchmarks.overhead.turn import Turn

MIN_SAMPLES = 30
"""Fewer tokens or requests than these in a window say nothing about their cost."""
FOREIGN_SHARE = 0.1
"""Of a core used by programs that have no part in the run: above it the run is called disturbed."""


@dataclass(frozen=True, slots=True)
class Summary:
    """estimates: by participant and metric; comparisons: of ours with the others, ratios where the
    metric is relative, else differences in its unit."""

    num_rounds: int
    series: Mapping[str, Mapping[str, Values]]
    estimates: Mapping[str, Mapping[str, Estimate]]
    comparisons: Mapping[str, Mapping[str, Estimate]]
    foreign_share: float | None
    problems: tuple[str, ...]

    def compared(self, one: str, other: str) -> Mapping[str, Estimate]:
        """One participant with another, by metric; empty where either was not measured."""
        if one not in self.series or other not in self.series:
            return {}
        return _compared(self.series[one], self.series[other])

    @property
    def disturbed(self) -> bool:
        return self.foreign_share is not None and self.foreign_share > FOREIGN_SHARE


def summarise(turns: Sequence[Turn], num_rounds: int, ours: str = OURS) -> Summary:
    """ours: whose costs are compared with the others'."""
    direct = {turn.round_number: turn for turn in turns if turn.participant == DIRECT}
    names = list(dict.fromkeys(turn.participant for turn in turns))
    series: dict[str, dict[str, Values]] = {}
    for name in names:
        mine = {turn.round_number: figures(turn, direct.get(turn.round_number)) for turn in turns
                if turn.participant == name}  # fmt: skip
        series[name] = {
            metric.name: [mine.get(number, {}).get(metric.name) for number in range(num_rounds)]
            for metric in METRICS
        }
    estimates = {
        name: {metric: found for metric, values in columns.items() if (found := estimate(values))}
        for name, columns in series.items()
    }
    return Summary(
        num_rounds,
        series,
        estimates,
        {name: _compared(series[ours], series[name]) for name in names if ours in series and name != ours},
        _foreign_share(turns),
        tuple(problem for turn in turns for problem in problems(turn)),
    )


def figures(turn: Turn, direct: Turn | None) -> dict[str, float]:
    """By metric. A phase with failures has none: what was left undone cost nothing."""
    found: dict[str, float] = {}
    cpu_costs: tuple[tuple[PhaseName, str, float], ...] = (
        ("streams", "token_us", 1e6), ("steps", "step_token_us", 1e6), ("plain", "plain_ms", 1e3),
        ("paced", "paced_ms", 1e3),
    )  # fmt: skip
    for phase, metric, scale in cpu_costs:
        result = sound(turn, phase)
        if result is not None and result.cpu_s is not None:
            count = result.num_plain if phase in ("plain", "paced") else result.num_tokens
            if count >= MIN_SAMPLES:
                found[metric] = scale * result.cpu_s / count
    mine = sound(turn, "poisson")
    theirs = sound(direct, "poisson") if direct is not None else None
    if mine is not None and theirs is not None and direct is not turn:
        for metric, quantity, rank in (
            ("ttft_added_p50_ms", "ttft_s", "p50"),
            ("delay_added_p50_ms", "delay_s", "p50"),
            ("delay_added_p99_ms", "delay_s", "p99"),
            ("itl_added_p99_ms", "itl_s", "p99"),
        ):
            if quantity in mine.quantiles and quantity in theirs.quantiles:
                found[metric] = 1e3 * (mine.quantiles[quantity][rank] - theirs.quantiles[quantity][rank])
    if turn.peak_bytes is not None:
        found["peak_mb"] = turn.peak_bytes / 1e6
    return found


def sound(turn: Turn, phase: PhaseName) -> Result | None:
    """The phase's result if every request in it was answered."""
    result = turn.results.get(phase)
    return result if result is not None and not result.failures else None


def problems(turn: Turn) -> list[str]:
    """What a reader must know about a turn."""
    where = f"{turn.participant}, round {turn.round_number + 1}"
    found = [] if turn.problem is None else [f"{where}: {turn.problem}"]
    for phase, result in turn.results.items():
        if result.failures:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in result.failures.items())
            found.append(f"{where}, {phase}: {reasons}; its figures are left out")
        if result.num_retries:
            found.append(f"{where}, {phase}: {result.num_retries} requests met a closed connection")
    if turn.results and turn.upstream_requests != turn.client_requests:
        found.append(
            f"{where}: {turn.client_requests} requests sent, {turn.upstream_requests} reached the upstream"
        )
    return found


def _compared(ours: Mapping[str, Values], theirs: Mapping[str, Values]) -> dict[str, Estimate]:
    found = {}
    for metric in METRICS:
        compare = paired_ratio if metric.relative else paired_difference
        result = compare(ours[metric.name], theirs[metric.name])
        if result is not None:
            found[metric.name] = result
    return found


def _foreign_share(turns: Sequence[Turn]) -> float | None:
    """Median over windows, of a core."""
    shares = [result.foreign_cpu_share for turn in turns for result in turn.results.values()]
    found = estimate(shares)
    return found.median if found is not None else None
