"""A phase of the load and what came of it; both cross a process border as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["streams", "poisson", "plain", "paced", "stalled"]


@dataclass(frozen=True, slots=True)
class Phase:
    """streams: so many at once, each followed by the next, evenly shifted against each other.
    poisson: streams arriving at `rate_per_s`, whatever becomes of them. plain: `concurrency` plain
    requests at once, each followed by the next. paced: plain requests arriving at `rate_per_s`.
    stalled: so many streams that nobody reads on after the first token.

    headers: as sent; root_pid, stub_pid: whose CPU time is read at both ends of the window, None for
    the stub alone. window_s of load are measured after warmup_s of the same. salt: makes prompts unique.
    """

    kind: Kind
    host: str
    port: int
    model: str
    headers: Mapping[str, str]
    window_s: float
    warmup_s: float
    seed: int
    salt: str
    concurrency: int = 64
    num_tokens: int = 64
    gap_s: float = 0.02
    rate_per_s: float = 25.0
    root_pid: int | None = None
    stub_pid: int | None = None
    driver_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Of the window; seconds. cpu_s: of the participant. foreign_cpu_share: cores that others used."""

    window_s: float
    num_tokens: int
    num_streams: int
    num_plain: int
    num_sent: int
    num_retries: int
    num_connects: int
    failures: Mapping[str, int]
    cpu_s: float | None
    load_cpu_share: float
    stub_cpu_share: float | None
    foreign_cpu_share: float | None
    ttfts_s: tuple[float, ...] = ()
    quantiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Result:
        return cls(**{**members, "ttfts_s": tuple(members["ttfts_s"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
