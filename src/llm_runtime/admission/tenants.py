"""The declared tenants: what each may, by name. What is not declared has no limits and equal rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_runtime.admission.config import TenantConfig, TenantLimits, TenantSlo
from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import HIGHEST_PRIORITY, PriorityClass, priority_class

TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
BEST_OF_CLASS: Mapping[PriorityClass, int] = {
    cls: next(level for level in range(HIGHEST_PRIORITY, 10) if priority_class(level) is cls)
    for cls in PriorityClass
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """best_priority: the lowest number its requests can have; limits: None where it has none at all."""

    name: str
    best_priority: int = HIGHEST_PRIORITY
    weight: float = 1.0
    limits: TenantLimits | None = None
    slo: TenantSlo | None = None

    def priority(self, asked: int) -> int:
        """What a request that asks for `asked` gets: the ceiling wins, silently."""
        return max(asked, self.best_priority)


UNDECLARED = Tenant("")


class Tenants:
    """Read-only after construction; from any thread.

    Raises ConfigError for a name that is given twice or that no label or header could carry.
    """

    __slots__ = ("_by_name",)

    def __init__(self, declared: Iterable[TenantConfig] = ()) -> None:
        self._by_name: dict[str, Tenant] = {}
        for config in declared:
            if TENANT_NAME.fullmatch(config.name) is None:
                raise ConfigError(
                    f"admission.tenants: {config.name[:80]!r} is no name for a tenant: it must be 1 to 64 "
                    "letters, digits, dots, underscores and hyphens"
                )
            if config.name in self._by_name:
                raise ConfigError(f"admission.tenants: {config.name} is declared twice; join the two")
            self._by_name[config.name] = _tenant(config)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def limited(self) -> bool:
        """Whether any tenant has a limit."""
        return any(tenant.limits is not None for tenant in self._by_name.values())

    def of(self, name: str) -> Tenant:
        """The tenant of that name; where it is not declared, one without limits (nor a name)."""
        return self._by_name.get(name, UNDECLARED)

    def limits_of(self, name: str) -> TenantLimits | None:
        tenant = self._by_name.get(name)
        return None if tenant is None else tenant.limits

    def weight_of(self, name: str) -> float:
        tenant = self._by_name.get(name)
        return 1.0 if tenant is None else tenant.weight


def _tenant(config: TenantConfig) -> Tenant:
    return Tenant(
        name=config.name,
        best_priority=BEST_OF_CLASS[config.ceiling],
        weight=config.weight,
        limits=config.limits if config.limits.any else None,
        slo=config.slo if config.slo != TenantSlo() else None,
    )
