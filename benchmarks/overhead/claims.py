"""What the project says about its cost, as bars that a run meets or misses. Pure.

`ci` bars are wide enough for shared machines and fail the build; `claims` need a quiet machine,
every peer and seven rounds; `compiled` are those of the compiled build, which has to be there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.overhead.participants import BASELINE, COMPILED, OURS, ROUTER, SMG
from benchmarks.overhead.plan import BY_NAME
from benchmarks.overhead.ratios import Estimate
from benchmarks.overhead.summary import Summary

Group = Literal["ci", "claims", "compiled"]
ASKED: Mapping[Group, tuple[Group, ...]] = {
    "ci": ("ci",), "claims": ("ci", "claims"), "compiled": ("ci", "compiled"),
}  # fmt: skip
"""By what a check is told to look at, the groups that must be met."""
Pick = Callable[[Summary], Estimate | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """bar: the median must not be above it. goal: what we are after, where that is less."""

    group: Group
    text: str
    unit: str
    bar: float
    goal: float | None
    pick: Pick


@dataclass(frozen=True, slots=True)
class Verdict:
    """met: None where it could not be measured. sure: the whole interval lies below the bar.
    surely_missed: all of it lies above; with too few rounds for an interval the median decides."""

    claim: Claim
    found: Estimate | None

    @property
    def met(self) -> bool | None:
        return None if self.found is None else self.found.median <= self.claim.bar

    @property
    def sure(self) -> bool:
        return self.found is not None and self.found.high is not None and self.found.high <= self.claim.bar

    @property
    def surely_missed(self) -> bool:
        return self.met is False and (
            self.found is None or self.found.low is None or self.found.low > self.claim.bar
        )


def against(peer: str, metric: str, ours: str = OURS) -> Pick:
    """Ours, or another build of it, against a peer: a ratio or a difference, as the metric is."""
    return lambda summary: summary.compared(ours, peer).get(metric)


def own(metric: str) -> Pick:
    return lambda summary: summary.estimates.get(OURS, {}).get(metric)


def _ratio(group: Group, metric: str, peer: str, bar: float, goal: float | None = None) -> Claim:
    text, ours = f"{BY_NAME[metric].title}, of {peer}'s", OURS
    if group == "compiled":
        text, ours = f"{text}, compiled", COMPILED
    return Claim(group, text, "x", bar, goal, against(peer, metric, ours))


CLAIMS = (
    _ratio("ci", "token_us", BASELINE, 1 / 3, 1 / 6),
    _ratio("ci", "plain_ms", BASELINE, 1 / 3, 1 / 6),
    _ratio("claims", "token_us", ROUTER, 1.0, 0.9),
    _ratio("claims", "step_token_us", ROUTER, 1.0, 0.9),
    _ratio("claims", "plain_ms", SMG, 1.0),
    _ratio("claims", "plain_ms", ROUTER, 1.2),
    _ratio("compiled", "token_us", ROUTER, 1.0, 0.9),
    _ratio("compiled", "step_token_us", ROUTER, 1.0, 0.9),
    _ratio("compiled", "plain_ms", SMG, 1.0),
    _ratio("compiled", "plain_ms", ROUTER, 1.2),
    Claim("claims", f"TTFT added, p50, beyond {ROUTER}'s", "ms", 1.0, None,
          against(ROUTER, "ttft_added_p50_ms")),
    Claim("claims", "token delay added, p50", "ms", 0.5, None, own("delay_added_p50_ms")),
    Claim("claims", f"token delay added, p99, beyond {ROUTER}'s", "ms", 2.0, None,
          against(ROUTER, "delay_added_p99_ms")),
)  # fmt: skip


def judge(summary: Summary) -> list[Verdict]:
    return [Verdict(claim, claim.pick(summary)) for claim in CLAIMS]


def failing(verdicts: list[Verdict], group: Group) -> list[Verdict]:
    """Missed or not measured; every group includes `ci`, whose bars fail a build only when they are surely
    missed: its machine does other work, and nobody trusts a check that fails by the weather."""
    asked = [verdict for verdict in verdicts if verdict.claim.group in ASKED[group]]
    return [
        verdict
        for verdict in asked
        if verdict.met is None or (verdict.surely_missed if verdict.claim.group == "ci" else not verdict.met)
    ]
