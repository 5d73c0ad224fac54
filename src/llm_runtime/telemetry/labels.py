"""Label values with a bounded number of distinct ones, whatever clients and engines send.

A name that is not known beforehand becomes "other": a flood of typos adds one series, not thousands,
and a configured name keeps its own even after the flood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.request import EndpointKind

OTHER = "other"

MAX_MODELS = 200
"""With a label of their own: a hosted upstream lists hundreds, and each is several series."""

FINISH_REASONS = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "end_turn", "max_tokens", "tool_use",
     "stop_sequence", "refusal", "pause_turn", "incomplete"}
)  # fmt: skip

ENDPOINTS = frozenset({kind.value for kind in EndpointKind} | {"models", "health", "metrics", "ops", "admin"})

# Reasons that are given at the place of failure and are no class's own.
SPECIAL_REASONS = frozenset(
    {
        "array_too_long", "backend_aborted", "backend_stream_truncated", "body_timeout", "body_too_complex",
        "cancelled", "empty_array", "engine_down", "engine_full", "engine_impostor", "engine_start_failed",
        "engine_start_timeout", "invalid_http", "invalid_json", "invalid_type", "invalid_value",
        "missing_required_parameter", "port_in_use", "preempted", "replica_lost", "server_stopped",
        "slow_client", "stopped", "too_many_sequences", "unknown_parameter", "unsupported_content_encoding",
        "unsupported_content_part", "unsupported_endpoint", "unsupported_parameter", "unsupported_value",
        "upstream_aborted",
    }
)  # fmt: skip


def error_reasons(root: type[LLMRuntimeError] = LLMRuntimeError) -> Iterator[str]:
    """The reason of every class of the error tree."""
    yield root.reason
    for kind in root.__subclasses__():
        yield from error_reasons(kind)


class Labels:
    """Owned by `MetricsCollector`.

    models: names that are served, aliases included. tenants: those with a label of their own; empty:
    tenants are no label at all. reasons: further known reasons.
    """

    __slots__ = ("_models", "_reasons", "_tenants")

    def __init__(
        self, models: Iterable[str], tenants: Iterable[str] = (), reasons: Iterable[str] = ()
    ) -> None:
        self._models = set(models)
        self._tenants = frozenset(tenants)
        self._reasons = frozenset(error_reasons()) | SPECIAL_REASONS | frozenset(reasons)

    @property
    def with_tenants(self) -> bool:
        return bool(self._tenants)

    def add_models(self, names: Iterable[str]) -> None:
        """Names that became known later. Up to MAX_MODELS in all; the rest stay "other"."""
        for name in names:
            if len(self._models) >= MAX_MODELS:
                return
            self._models.add(name)

    def model(self, name: str) -> str:
        return name if name in self._models else OTHER

    def tenant(self, name: str) -> str:
        return name if name in self._tenants else OTHER

    def endpoint(self, name: str) -> str:
        return name if name in ENDPOINTS else OTHER

    def finish_reason(self, word: str) -> str:
        return word if word in FINISH_REASONS else OTHER

    def reason(self, word: str) -> str:
        return word if word in self._reasons else OTHER

    def error(self, error: LLMRuntimeError) -> str:
        """The error's reason; one that was made up on the spot becomes its class's."""
        return error.reason if error.reason in self._reasons else self.reason(type(error).reason)


def priority(value: int) -> str:
    return str(value) if 0 <= value <= 9 else OTHER


def status(code: int) -> str:
    return str(code) if 400 <= code <= 599 else OTHER
