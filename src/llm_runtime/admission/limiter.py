"""What the composition root needs of tenants: who keeps their limits, and which of it must stay secret."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from llm_runtime.admission.config import AdmissionConfig, RedisConfig
from llm_runtime.admission.tenant_limits import LocalLimits
from llm_runtime.core.errors import ConfigError

if TYPE_CHECKING:
    from llm_runtime.admission.redis_limits import RedisLimits


def build_limiter(config: RedisConfig) -> LocalLimits | RedisLimits:
    """Raises ConfigError without the package that speaks to Redis, and for a URL that it cannot use."""
    if config.url is None:
        return LocalLimits()
    try:
        from llm_runtime.admission.redis_limits import RedisLimits
    except ModuleNotFoundError as error:
        raise ConfigError(
            "admission.redis.url is set, but the package `redis` is not installed: "
            "pip install 'llm-runtime[redis]', or leave the URL unset"
        ) from error
    try:
        return RedisLimits(config)
    except ValueError as error:
        raise ConfigError(f"admission.redis.url: {error}") from None


def secrets_of(config: AdmissionConfig) -> tuple[str, ...]:
    """Every literal that must not appear in a log: tenants' keys, and the user part of Redis's URL."""
    found = [key for tenant in config.tenants for key in tenant.keys]
    try:
        parts = urlsplit(config.redis.url or "")
        found += [unquote(part) for part in (parts.password, parts.username) if part]
    except ValueError:
        pass  # no URL, which is said where it is used
    return tuple(found)
