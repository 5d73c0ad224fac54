"""What a run is: target, load, workload, limits and objectives, as frozen values with their defaults.

These values go into the result file as they are (credentials left out), so a result explains itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_runtime.bench.lengths import Fixed, Length
from llm_runtime.core.errors import ConfigError

Endpoint = Literal["chat", "completions"]
Process = Literal["constant", "poisson", "gamma"]

_TOKENS_256, _TOKENS_64, _ONE = Fixed(256), Fixed(64), Fixed(1)

PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how it is asked.

    url: http, https or unix; a path before `/v1` is kept. model: None takes the first one listed.
    extra_body: members added to every request body, winning over the harness's own.
    ignore_eos: asks for answers of full length, on engines that know the field.
    timeout_s: for one request, from its first byte sent to its end.
    """

    url: str
    endpoint: Endpoint = "chat"
    stream: bool = True
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, object] = field(default_factory=dict)
    ignore_eos: bool = False
    temperature: float | None = 0.0
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """tokens at the start of a prompt that requests share; count: how many different such starts."""

    tokens: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of traffic; share: its part of all sessions, relative to the other classes'.

    input_tokens: of each user message, beside the shared prefix. output_tokens: sent as the cap.
    turns: requests of a session, each sent when the one before was answered and think_s passed.
    priority, tenant, api_key: as the server understands them; None sends nothing.
    patience_s: from when it was due, who has no token of a stream by then leaves; servers that understand
    `x-slo-ttft-ms` are told. None waits as long as the target's time-out.
    """

    name: str = "default"
    share: float = 1.0
    input_tokens: Length = _TOKENS_256
    output_tokens: Length = _TOKENS_64
    prefix: Prefix = Prefix()
    turns: Length = _ONE
    think_s: float = 0.0
    priority: int | None = None
    tenant: str | None = None
    api_key: str | None = field(default=None, repr=False)
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A recorded load instead of a synthetic one.

    time_scale multiplies instants, length_scale token counts; keep is the share of requests kept,
    chosen by the seed. start_s and duration_s cut a window out of the trace before scaling.
    """

    path: str
    time_scale: float = 1.0
    length_scale: float = 1.0
    keep: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which the rate goes straight from one value to another, per second."""

    duration_s: float
    rate_from: float
    rate_to: float


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """concurrency clients, each sending its next request when its last one ended.

    ramp_up_s: over which the clients start.
    """

    concurrency: int = 1
    ramp_up_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals that do not wait for answers.

    rate: per second, infinite for all at once; ignored where a profile is given, which repeats
    until the limits. burstiness: shape of the gamma gaps, 1 is Poisson, below 1 burstier.
    max_in_flight: a cap of the client, whose waiting counts into every latency.
    """

    rate: float = 1.0
    process: Process = "poisson"
    burstiness: float = 1.0
    profile: tuple[Segment, ...] = ()
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Arrivals at the instants of a trace."""

    trace: TraceFile
    max_in_flight: int | None = None


Load = ClosedLoop | OpenLoop | Replay


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: after so many requests or so many seconds of load, whichever comes first.

    warmup_requests: sent before the load and forgotten. warmup_s, cooldown_s: of the load, at its
    start and end, whose requests load the server but are not measured.
    drain_timeout_s: after the last arrival; what is not answered by then has failed.
    """

    requests: int | None = None
    duration_s: float | None = None
    warmup_requests: int = 1
    warmup_s: float = 0.0
    cooldown_s: float = 0.0
    drain_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives a request must meet, all of those given, to be good. Seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None or self.e2e_s is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. seed decides lengths, classes and arrivals; salt the words of the prompts.

    salt: None draws a new one, so that a repeated run never finds its own prompts in a cache.
    tokens_per_word: of the target's tokenizer, for prompts; the result tells the measured ratio.
    metrics_urls: Prometheus pages to sample beside the target's own.
    """

    target: Target
    load: Load = ClosedLoop()
    traffic: tuple[TrafficClass, ...] = (TrafficClass(),)
    limits: Limits = Limits(requests=100)
    slo: Slo = Slo()
    seed: int = 0
    salt: str | None = None
    tokens_per_word: float = 1.0
    allow_estimates: bool = False
    sample_interval_s: float = 1.0
    metrics_urls: tuple[str, ...] = ()


def check(plan: Plan) -> None:
    """Raises ConfigError, naming the value, for a plan that cannot be run as it reads."""
    limits, load = plan.limits, plan.load
    if limits.requests is None and limits.duration_s is None and not isinstance(load, Replay):
        raise ConfigError("the run has no end: give a number of requests or a duration")
    _positive("number of requests", limits.requests)
    _positive("duration", limits.duration_s)
    _positive("tokens per word", plan.tokens_per_word)
    _positive("sample interval", plan.sample_interval_s)
    window = limits.warmup_s + limits.cooldown_s
    if limits.duration_s is not None and window >= limits.duration_s:
        raise ConfigError(f"warm-up and cool-down take {window:g} s of a load of {limits.duration_s:g} s")
    if limits.duration_s is None and limits.cooldown_s:
        raise ConfigError("a cool-down needs a duration: nobody knows when a counted load will end")
    if isinstance(load, ClosedLoop):
        _positive("concurrency", load.concurrency)
    elif isinstance(load, OpenLoop):
        _check_open(load, limits)
    else:
        for name in ("time_scale", "length_scale", "keep"):
            _positive(name.replace("_", " "), getattr(load.trace, name))
    for traffic in plan.traffic:
        _positive("patience", traffic.patience_s)
    if not plan.traffic or sum(traffic.share for traffic in plan.traffic) <= 0:
        raise ConfigError("no class of traffic has a share above 0")


def _check_open(load: OpenLoop, limits: Limits) -> None:
    _positive("rate", load.rate)
    _positive("burstiness", load.burstiness)
    _positive("cap of requests in flight", load.max_in_flight)
    for segment in load.profile:
        _positive("duration of a segment", segment.duration_s)
        if min(segment.rate_from, segment.rate_to) < 0:
            raise ConfigError("a rate below 0 means nothing")
    if load.profile and not any(segment.rate_from + segment.rate_to > 0 for segment in load.profile):
        raise ConfigError("the profile never sends anything")
    if load.rate == float("inf") and not load.profile and limits.requests is None:
        raise ConfigError("an infinite rate needs a number of requests")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"the {name} must be above 0, not {value}")
