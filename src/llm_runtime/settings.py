"""The one typed tree of settings, and how it is put together.

Defaults < YAML file < `LLM_RUNTIME_*` < command line. Each section's type, with its defaults, belongs
to the package that uses it. The environment is an argument: only the composition root reads it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import EnginesConfig, ModelConfig
from llm_runtime.engines.ray.config import RayConfig
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.settings_leaves import Leaf, leaves
from llm_runtime.settings_sources import (
    Given,
    config_path,
    from_command_line,
    from_environment,
    from_file,
)
from llm_runtime.telemetry.config import TelemetryConfig
from llm_runtime.web.config import ServerConfig

DEFAULT_ORIGIN = "default"
WORKER_VARIABLES = ("WEB_CONCURRENCY", "UVICORN_WORKERS")


class Settings(BaseModel):
    """Everything that can be set. Immutable; whoever has one may rely on every check below.

    Building one by hand raises pydantic's ValidationError for a value out of its type, ConfigError
    for values that contradict each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    server: ServerConfig = ServerConfig()
    model: ModelConfig = ModelConfig()
    engines: EnginesConfig = EnginesConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig()
    limits: LimitsConfig = LimitsConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    ray: RayConfig = RayConfig()

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd but no error; to be logged once, at the start."""
        return self._warnings

    def origin(self, name: str) -> str:
        """Where the setting of that dotted name comes from: `default`, `file PATH`, `env NAME`, `cli`."""
        return self._origins.get(name, DEFAULT_ORIGIN)

    def value(self, name: str) -> Any:
        """The setting of that dotted name."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
        return value

    def without(self, section: str) -> Settings:
        """The same, as if nothing of that section had been given."""
        copy = self.model_copy(update={section: type(getattr(self, section))()})
        copy._origins = {
            name: origin for name, origin in self._origins.items() if not name.startswith(f"{section}.")
        }
        return copy

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _check_keys(self.server)
        _check_exposure(self.server)
        _check_engines(self.engines)
        _check_ray(self.ray)
        _check_routing(self.routing)
        return self


def load_settings(
    overrides: Mapping[str, str], environ: Mapping[str, str], config_file: str | None = None
) -> Settings:
    """Merges all sources and checks the result.

    overrides: what the command line gave, by dotted or flat name. config_file: the command line's
    `--config`; without it `LLM_RUNTIME_CONFIG` may name one. Raises ConfigError, naming the key, the
    value and the fix; several wrong values are told together, one line each.
    """
    _check_workers(environ)
    path = config_path(config_file, environ)
    from_env, warnings = from_environment(environ)
    given = {**(from_file(path) if path else {}), **from_env, **from_command_line(overrides)}
    try:
        settings = Settings.model_validate(_nest(given.values()))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(given, error))) from None
    settings._origins = {name: value.origin for name, value in given.items()}
    settings._warnings = (*warnings, *_without_effect(settings))
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`. Unknown names count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _nest(given: Iterable[Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for value in given:
        *sections, key = value.leaf.name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = value.raw
    return tree


def _explain(given: Mapping[str, Given], error: ValidationError) -> list[str]:
    explained: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_input=False):
        name = _leaf_name(detail["loc"])
        explained.setdefault(name, given[name].error(_why(given[name].leaf, detail["msg"])).message)
    return list(explained.values())


def _leaf_name(location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location]
    return next(name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in leaves())


def _why(leaf: Leaf, message: str) -> str:
    why = message.replace("Input should be", "it should be", 1)
    return f"{why}; `none` switches it off" if leaf.optional else why


def _check_keys(server: ServerConfig) -> None:
    for position, key in enumerate(server.api_keys, start=1):
        if not key or not all("!" <= character <= "~" for character in key):
            raise ConfigError(
                f"server.api_keys: key number {position} has a character that no Authorization header "
                "can carry; use letters, digits and punctuation of ASCII, without spaces"
            )


def _check_exposure(server: ServerConfig) -> None:
    if not server.host.strip():
        raise ConfigError("server.host = '' names no address; use 127.0.0.1, or 0.0.0.0 for all")
    if is_loopback(server.host) or server.api_keys or server.allow_unauthenticated:
        return
    raise ConfigError(
        f"server.host = {server.host!r} can be reached from other machines and no API key is set: set "
        "LLM_RUNTIME_API_KEYS, or server.host = 127.0.0.1, or say that anybody may use it with "
        f"{leaves()['server.allow_unauthenticated'].variable}=true"
    )


def _check_engines(engines: EnginesConfig) -> None:
    llama, supervision = engines.llama_cpp, engines.supervision
    if engines.backend == "openai" and not engines.openai.url:
        raise ConfigError(
            "engines.openai.url is not set: engines.backend = openai needs the server's URL, as in "
            "LLM_RUNTIME_UPSTREAM_URL=http://127.0.0.1:8080/v1"
        )
    urls = [one.url for one in engines.openai.each]
    if len(set(urls)) < len(urls):
        raise ConfigError("engines.openai.url names the same server twice: each one is a replica of its own")
    if engines.backend == "llama.cpp" and llama.n_batch is not None and llama.n_batch < engines.concurrency:
        raise ConfigError(
            f"engines.llama_cpp.n_batch = {llama.n_batch} is below the number of slots, which kills the "
            f"engine: make it at least {engines.concurrency} "
            "(engines.native_backend_concurrency), or leave it unset"
        )
    if supervision.restart_backoff_max_s < supervision.restart_backoff_s:
        raise ConfigError(
            f"engines.supervision.restart_backoff_max_s = {supervision.restart_backoff_max_s} is below "
            f"the first wait: make it at least {supervision.restart_backoff_s} "
            "(engines.supervision.restart_backoff_s)"
        )


def _check_ray(ray: RayConfig) -> None:
    if ray.max_replicas is not None and ray.max_replicas < ray.min_replicas:
        raise ConfigError(
            f"ray.max_replicas = {ray.max_replicas} is below the fewest: make it at least {ray.min_replicas} "
            "(ray.min_replicas)"
        )


def _check_routing(routing: RoutingConfig) -> None:
    if routing.breaker_open_max_s < routing.breaker_open_s:
        raise ConfigError(
            f"routing.breaker_open_max_s = {routing.breaker_open_max_s} is below the first pause: make it at "
            f"least {routing.breaker_open_s} (routing.breaker_open_s)"
        )


def _check_workers(environ: Mapping[str, str]) -> None:
    for variable in WORKER_VARIABLES:
        text = environ.get(variable, "").strip()
        if text.isdecimal() and int(text) > 1:
            raise ConfigError(
                f"{variable} = {text}: one process owns the queue and the engine, so it cannot be forked "
                f"into workers; unset {variable}, and to scale start more servers on ports of their own "
                "behind a load balancer"
            )


def _without_effect(settings: Settings) -> list[str]:
    warnings = []
    admission, scheduling = settings.admission, settings.scheduling
    if admission.request_rate_limit_burst is not None and admission.request_rate_limit_per_s is None:
        warnings.append(
            "admission.request_rate_limit_burst has no effect without admission.request_rate_limit_per_s"
        )
    if scheduling.policy == "fifo":
        for name in (
            "priority_aging_boost_interval_s",
            "batch_slot_share",
            "batch_prompts",
            "batch_prompt_time_share",
        ):
            if getattr(scheduling, name) is not None:
                warnings.append(f"scheduling.{name} has no effect with scheduling.policy = fifo")
    return warnings
