"""Options that several `bench` commands share, each defined once, and the plan they add up to.

A command takes a group of them by a parameter whose type is the group; `flattened` turns the fields
of such groups into options of the command. Nothing of `bench` is imported before a plan is made.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from llm_runtime.bench.config import Limits, OpenLoop, Plan, Slo, Target, TraceFile, TrafficClass

LOOPBACK = ("127.0.0.1", "localhost", "::1")

Command = TypeVar("Command", bound=Callable[..., Any])


def flattened(command: Command) -> Command:
    """Replaces every parameter whose type is a dataclass by that class's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if hasattr(kind, "__dataclass_fields__"):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**values: Any) -> Any:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called  # type: ignore[return-value]


def _options(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name], default=default
        )


@dataclass(frozen=True)
class TargetOptions:
    url: Annotated[str, typer.Argument(help="Address of an OpenAI-compatible server, without /v1.")] = (
        "http://127.0.0.1:8000"
    )
    endpoint: Annotated[str, typer.Option(help="chat or completions.")] = "chat"
    stream: Annotated[bool, typer.Option(help="Ask for streams; plain answers have no TTFT.")] = True
    model: Annotated[str | None, typer.Option(help="Model to ask.", show_default="the server's first")] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Bearer key.", show_default="on loopback the first of LLM_RUNTIME_API_KEYS", metavar="KEY"
        ),
    ] = None
    header: Annotated[
        list[str] | None, typer.Option(help="Header for every request, 'name: value'; may be repeated.")
    ] = None
    body: Annotated[str, typer.Option(help="JSON object with more members for every request.")] = "{}"
    ignore_eos: Annotated[bool, typer.Option(help="Ask engines that can for answers of full length.")] = False
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.0
    timeout_s: Annotated[float, typer.Option(help="For one request.")] = 600.0
    allow_estimates: Annotated[
        bool, typer.Option(help="Where the server reports no usage, count events, and mark it.")
    ] = False
    metrics_url: Annotated[
        list[str] | None, typer.Option(help="Another Prometheus page to sample, such as DCGM's.")
    ] = None

    sample_interval_s: Annotated[
        float, typer.Option(help="Between two samples of the server's own page.")
    ] = 1.0

    def target(self) -> Target:
        import json

        from llm_runtime.bench.config import PATHS, Target
        from llm_runtime.bench.notation import parse_headers
        from llm_runtime.core.errors import ConfigError

        if self.endpoint not in PATHS:
            raise ConfigError(f"--endpoint {self.endpoint}: there are {' and '.join(PATHS)}")
        try:
            extra = json.loads(self.body)
        except ValueError as error:
            raise ConfigError(f"--body is no JSON: {error}") from error
        if not isinstance(extra, dict):
            raise ConfigError("--body must be a JSON object")
        return Target(
            url=self.url,
            endpoint=self.endpoint,  # type: ignore[arg-type]
            stream=self.stream,
            model=self.model,
            api_key=self.api_key or _own_key(self.url),
            headers=parse_headers(self.header or ()),
            extra_body=extra,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True)
class TrafficOptions:
    input_tokens: Annotated[
        str, typer.Option(help="Prompt tokens: 256, uniform:64:512, normal:256:64, lognormal:256:0.8.")
    ] = "256"
    output_tokens: Annotated[str, typer.Option(help="max_tokens, in the same notation.")] = "64"
    prefix: Annotated[
        str, typer.Option(help="Shared beginning before the prompt: tokens, or tokens:count.")
    ] = "0"
    turns: Annotated[str, typer.Option(help="Requests per conversation, as a length.")] = "1"
    think_s: Annotated[float, typer.Option(help="Between an answer and the next turn.")] = 0.0
    priority: Annotated[int | None, typer.Option(help="Sent as `priority`.")] = None
    tenant: Annotated[str | None, typer.Option(help="Sent as x-tenant-id.")] = None
    traffic: Annotated[
        list[str] | None,
        typer.Option(
            help="A class of a mix, overriding the above: name=chat,share=3,input=..,output=..,priority=..,"
            "tenant=..,prefix=..,turns=..,think=..,key=.. May be repeated."
        ),
    ] = None
    tokens_per_word: Annotated[float, typer.Option(help="Of the target's tokenizer, for prompts.")] = 1.0
    seed: Annotated[int, typer.Option(help="Of lengths, classes and arrivals.")] = 0
    salt: Annotated[
        str | None, typer.Option(help="Of the prompts' words.", show_default="a new one per run")
    ] = None

    def classes(self) -> tuple[TrafficClass, ...]:
        from llm_runtime.bench.config import TrafficClass
        from llm_runtime.bench.lengths import parse_length
        from llm_runtime.bench.notation import parse_prefix, parse_traffic

        default = TrafficClass(
            input_tokens=parse_length(self.input_tokens),
            output_tokens=parse_length(self.output_tokens),
            prefix=parse_prefix(self.prefix),
            turns=parse_length(self.turns),
            think_s=self.think_s,
            priority=self.priority,
            tenant=self.tenant,
        )
        return tuple(parse_traffic(text, default) for text in self.traffic or ()) or (default,)


@dataclass(frozen=True)
class LimitOptions:
    requests: Annotated[
        int | None, typer.Option("--requests", "-n", min=1, help="Stop after so many.", show_default="100")
    ] = None
    duration_s: Annotated[float | None, typer.Option(help="Stop after so long.")] = None
    warmup_requests: Annotated[int, typer.Option(min=0, help="Sent before the load, not recorded.")] = 1
    warmup_s: Annotated[float, typer.Option(min=0, help="Start of the load that is not measured.")] = 0.0
    cooldown_s: Annotated[float, typer.Option(min=0, help="End of the load that is not measured.")] = 0.0
    drain_timeout_s: Annotated[float, typer.Option(min=0, help="For answers after the load.")] = 120.0
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Objective for goodput.")] = None
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Objective for goodput.")] = None
    slo_e2e_ms: Annotated[float | None, typer.Option(help="Objective for goodput.")] = None

    def limits(self, default_requests: int | None = 100) -> Limits:
        from llm_runtime.bench.config import Limits

        requests = self.requests
        if requests is None and self.duration_s is None:
            requests = default_requests
        measured = (self.warmup_requests, self.warmup_s, self.cooldown_s, self.drain_timeout_s)
        return Limits(requests, self.duration_s, *measured)

    def slo(self) -> Slo:
        from llm_runtime.bench.config import Slo

        given = (self.slo_ttft_ms, self.slo_tpot_ms, self.slo_e2e_ms)
        return Slo(*(None if value is None else value / 1e3 for value in given))


@dataclass(frozen=True)
class LoadOptions:
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", min=1, help="Closed loop with so many clients.", show_default="1"
        ),
    ] = None
    rate: Annotated[float | None, typer.Option(help="Open loop: arrivals per second, or inf.")] = None
    arrivals: Annotated[str, typer.Option(help="Of an open loop: constant, poisson or gamma.")] = "poisson"
    burstiness: Annotated[float, typer.Option(help="Shape of gamma gaps; below 1 burstier.")] = 1.0
    profile: Annotated[
        str | None, typer.Option(help="Open loop with changing rate: 60@1-20,60@20 (seconds@rate), repeated.")
    ] = None
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Cap of an open loop's client; its waiting counts.")
    ] = None
    ramp_up_s: Annotated[float, typer.Option(min=0, help="Over which a closed loop's clients start.")] = 0.0

    def plan(self, target: TargetOptions, traffic: TrafficOptions, limits: LimitOptions) -> Plan:
        from llm_runtime.bench.config import ClosedLoop
        from llm_runtime.core.errors import ConfigError

        is_open = self.rate is not None or self.profile is not None
        if is_open and self.concurrency is not None:
            raise ConfigError("a closed loop (--concurrency) has no rate: give one of them")
        load = self.open_loop() if is_open else ClosedLoop(self.concurrency or 1, self.ramp_up_s)
        return _plan(load, target, traffic, limits)

    def open_loop(self) -> OpenLoop:
        from llm_runtime.bench.config import OpenLoop
        from llm_runtime.bench.notation import parse_profile
        from llm_runtime.core.errors import ConfigError

        if self.arrivals not in ("constant", "poisson", "gamma"):
            raise ConfigError(f"--arrivals {self.arrivals}: there are constant, poisson and gamma")
        return OpenLoop(
            rate=1.0 if self.rate is None else self.rate,
            process=self.arrivals,  # type: ignore[arg-type]
            burstiness=self.burstiness,
            profile=parse_profile(self.profile) if self.profile else (),
            max_in_flight=self.max_in_flight,
        )


@dataclass(frozen=True)
class TraceOptions:
    trace: Annotated[str, typer.Argument(help="Azure LLM inference CSV or Mooncake JSONL.", metavar="FILE")]
    time_scale: Annotated[float, typer.Option(help="Multiplies instants; below 1 is faster.")] = 1.0
    length_scale: Annotated[float, typer.Option(help="Multiplies token counts.")] = 1.0
    keep: Annotated[float, typer.Option(help="Share of requests kept, chosen by the seed.")] = 1.0
    start_s: Annotated[float, typer.Option(min=0, help="Where in the trace to start.")] = 0.0
    window_s: Annotated[float | None, typer.Option(help="How much of the trace, before scaling.")] = None
    max_input_tokens: Annotated[int | None, typer.Option(min=1, help="Longer prompts are cut.")] = None
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Longer answers are cut.")] = None
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Cap of the client; its waiting counts.")
    ] = None

    def plan(self, target: TargetOptions, traffic: TrafficOptions, limits: LimitOptions) -> Plan:
        from llm_runtime.bench.config import Replay

        return _plan(Replay(self.file(), self.max_in_flight), target, traffic, limits, default_requests=None)

    def file(self) -> TraceFile:
        from llm_runtime.bench.config import TraceFile

        return TraceFile(
            self.trace, self.time_scale, self.length_scale, self.keep, self.start_s, self.window_s,
            self.max_input_tokens, self.max_output_tokens,
        )  # fmt: skip


def _own_key(url: str) -> str | None:
    """The key of a server of ours on this machine; no other may see it."""
    if urlsplit(url).hostname not in LOOPBACK:
        return None
    return os.environ.get("LLM_RUNTIME_API_KEYS", "").partition(",")[0].strip() or None


def _plan(
    load: Any,
    target: TargetOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    *,
    default_requests: int | None = 100,
) -> Plan:
    from llm_runtime.bench.config import Plan, check

    plan = Plan(
        target.target(),
        load,
        traffic.classes(),
        limits.limits(default_requests),
        limits.slo(),
        traffic.seed,
        traffic.salt,
        traffic.tokens_per_word,
        target.allow_estimates,
        sample_interval_s=target.sample_interval_s,
        metrics_urls=tuple(target.metrics_url or ()),
    )
    check(plan)
    return plan
