"""Whether a run's figures may be used: pure rules over what was measured.

invalid      completed answers without the server's token counts, and estimates not allowed
failed       nothing was completed
void         the client was late: p99 of schedule lag above 5 ms
interrupted  stopped by the user; what was measured until then stands
ok           none of these
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llm_runtime.bench import metrics
from llm_runtime.bench.metrics import TokenFacts
from llm_runtime.bench.run import RunResult

MAX_LAG_S = 0.005
MAX_CLIENT_CPU = 0.85
"""Of one core: above it the client may be what is measured."""


class State(StrEnum):
    OK = "ok"
    INVALID = "invalid"
    FAILED = "failed"
    VOID = "void"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Verdict:
    """reasons: why it is not ok. warnings: what a reader must know even if it is."""

    state: State
    interrupted: bool = False
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """p99 in seconds, of whatever number of samples; None without any. cpu_share: of one core."""

    schedule_lag_p99_s: float | None
    loop_lag_p99_s: float | None
    cpu_s: float
    cpu_share: float
    cpu_per_output_token_s: float | None


def client_health(result: RunResult) -> ClientHealth:
    """Of the whole load, warm-up and cool-down included."""
    tokens = sum(record.completion_tokens or 0 for record in result.records)
    return ClientHealth(
        _p99(metrics.values(result.records, metrics.schedule_lag_s)),
        _p99(list(result.lags_s)),
        result.cpu_s,
        result.cpu_s / result.end_s if result.end_s > 0 else 0.0,
        result.cpu_s / tokens if tokens else None,
    )


def judge(result: RunResult, health: ClientHealth, tokens: TokenFacts) -> Verdict:
    """The gravest state that applies, with every reason and warning."""
    found: list[tuple[State, str]] = []
    if result.num_without_usage and not result.plan.allow_estimates:
        found.append((State.INVALID, "the server did not report usage: tokens are unknown"))
    if not metrics.completed(metrics.measured(result.records)):
        found.append((State.FAILED, "no measured request was completed"))
    if _late(health.schedule_lag_p99_s):
        found.append((State.VOID, f"the client was late: schedule lag p99 {_lag(health.schedule_lag_p99_s)}"))
    if result.interrupted:
        found.append((State.INTERRUPTED, "stopped by the user"))
    state = found[0][0] if found else State.OK
    reasons = tuple(reason for _, reason in found)
    return Verdict(state, result.interrupted, reasons, tuple(_warnings(result, health, tokens)))


def _warnings(result: RunResult, health: ClientHealth, tokens: TokenFacts) -> list[str]:
    warnings = []
    if tokens.num_estimated:
        warnings.append(f"token counts of {tokens.num_estimated} answers are estimates, not the server's")
    if tokens.itl_reliable is False:
        warnings.append("ITL is between reads, not tokens: many tokens shared a read")
    if tokens.num_contradicted:
        warnings.append(
            f"{tokens.num_contradicted} answers had more pieces of text than tokens in their usage"
        )
    if health.cpu_share > MAX_CLIENT_CPU:
        warnings.append(f"the client used {health.cpu_share:.0%} of its core: it may be the bottleneck")
    if _late(health.loop_lag_p99_s):
        warnings.append(f"the client's loop was late, and so are instants: p99 {_lag(health.loop_lag_p99_s)}")
    if result.num_retries:
        warnings.append(f"{result.num_retries} requests met a closed connection and were sent again")
    if result.num_abandoned_turns:
        warnings.append(f"{result.num_abandoned_turns} follow-up requests were never due")
    return warnings


def _late(lag_s: float | None) -> bool:
    return lag_s is not None and lag_s > MAX_LAG_S


def _lag(lag_s: float | None) -> str:
    return f"{1e3 * (lag_s or 0.0):.1f} ms, above {1e3 * MAX_LAG_S:g} ms"


def _p99(values: list[float]) -> float | None:
    """The smallest value that at least 99 % do not exceed."""
    if not values:
        return None
    return sorted(values)[-(len(values) // 100) - 1]
