"""The one typed tree of settings, and how it is put together.

Defaults < YAML file < `LLM_RUNTIME_*` < command line. Each section's type, with its defaults, belongs
to the package that uses it. The environment is an argument: only the composition root reads it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from llm_runtime.admission.config import AdmissionConfig, TenantConfig
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import EnginesConfig, ModelConfig
from llm_runtime.engines.ray.config import RayConfig
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
MAX_SHOWN_NAME = 80
TENANTS = "admission.tenants"
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

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key."""
        return bool(self.server.api_keys) or any(tenant.keys for tenant in self.admission.tenants)

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
        _check_keys("server.api_keys", self.server.api_keys)
        _check_keys("server.admin_api_keys", self.server.admin_api_keys)
        for tenant in self.admission.tenants:
            _check_keys(f"admission.tenants: keys of {tenant.name[:MAX_SHOWN_NAME]!r}", tenant.keys)
        _check_exposure(self.server, has_keys=self.has_keys)
        _check_engines(self.engines)
        _check_ray(self.ray)
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
        value = given[name]
        if name == TENANTS:
            why, name = _why_tenants(value, detail["loc"][2:], detail["msg"]), str(detail["loc"])
        else:
            why = _why(value.leaf, detail["msg"])
        explained.setdefault(name, value.error(why).message)
    return list(explained.values())


def _why_tenants(value: Given, where: tuple[int | str, ...], message: str) -> str:
    """where: below the list. Names the tenant as far as it has a name, and the field."""
    if not where or not isinstance(where[0], int) or not isinstance(value.raw, list):
        return "it must be a list of tenants, each with a name"
    why = message.replace("Input should be", "it should be", 1)
    item = value.raw[where[0]]
    name = item.get("name") if isinstance(item, dict) else None
    shown = repr(name[:MAX_SHOWN_NAME]) if isinstance(name, str) else f"number {where[0] + 1}"
    field = ".".join(str(part) for part in where[1:])
    if "nexpected keyword" in why:
        why = f"there is no such field; {_hint_field(where)}"
    return f"tenant {shown}: {field}: {why}" if field else f"tenant {shown}: {why}"


def _hint_field(where: tuple[int | str, ...]) -> str:
    owner: type = TenantConfig
    for part in where[1:-1]:
        owner = next((field.default.__class__ for field in fields(owner) if field.name == part), owner)
    known = ", ".join(field.name for field in fields(owner))
    return f"there are {known}"


def _leaf_name(location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location]
    return next(name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in leaves())


def _why(leaf: Leaf, message: str) -> str:
    why = message.replace("Input should be", "it should be", 1)
    return f"{why}; `none` switches it off" if leaf.optional else why


def _check_keys(where: str, keys: Iterable[str]) -> None:
    for position, key in enumerate(keys, start=1):
        if not key or not all("!" <= character <= "~" for character in key):
            raise ConfigError(
                f"{where}: key number {position} has a character that no Authorization header "
                "can carry; use letters, digits and punctuation of ASCII, without spaces"
            )


def _check_exposure(server: ServerConfig, *, has_keys: bool) -> None:
    if not server.host.strip():
        raise ConfigError("server.host = '' names no address; use 127.0.0.1, or 0.0.0.0 for all")
    if is_loopback(server.host) or has_keys or server.allow_unauthenticated:
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
    if settings.has_keys:
        warnings += [
            f"admission.tenants: {tenant.name} has no keys, so nobody can be it"
            for tenant in admission.tenants
            if not tenant.keys
        ]
    if admission.redis.url is not None and not any(tenant.limits.any for tenant in admission.tenants):
        warnings.append("admission.redis.url has no effect without a tenant that has limits")
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
