"""`RuntimeRequest`: what the runtime knows of one request once its body is read and validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

from llm_runtime.core.word import Word

HIGHEST_PRIORITY = 0
LOWEST_PRIORITY = 9
DEFAULT_PRIORITY = 5


class EndpointKind(Word):
    """An API. The value is the label in metrics and logs."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    RERANK = "rerank"
    TOKENIZE = "tokenize"


class PriorityClass(Word):
    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


def priority_class(priority: int) -> PriorityClass:
    """0-3 interactive, 4-6 standard, 7-9 batch (the only sheddable class)."""
    if priority <= 3:
        return PriorityClass.INTERACTIVE
    return PriorityClass.STANDARD if priority <= 6 else PriorityClass.BATCH


USUAL_LEVELS: Mapping[PriorityClass, int] = MappingProxyType(
    {PriorityClass.INTERACTIVE: 2, PriorityClass.STANDARD: DEFAULT_PRIORITY, PriorityClass.BATCH: 8}
)
"""What requests of a class mostly have, best class first: those that service tiers stand for."""


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class TimeLimits:
    """Seconds; None means no such limit. Each is measured by the handle, never by the engine.

    queue_s: waiting in our queue, from enqueueing to dispatch.
    request_s: plain reply: arrival to the last byte. Stream: arrival to the first token.
    idle_s: between two reads from the engine once a stream has begun.
    total_s: arrival to the end, only when the client or its key declared a deadline.
    first_byte_s: stream: arrival to the first byte of any kind, a comment included; set when the client
        has said that it waits no longer for it.
    """

    queue_s: Final[float | None]
    request_s: Final[float | None]
    idle_s: Final[float | None]
    total_s: Final[float | None]
    first_byte_s: Final[float | None]

    def __init__(
        self,
        queue_s: float | None = None,
        request_s: float | None = 120.0,
        idle_s: float | None = 60.0,
        total_s: float | None = None,
        first_byte_s: float | None = None,
    ) -> None:
        self.queue_s = queue_s
        self.request_s = request_s
        self.idle_s = idle_s
        self.total_s = total_s
        self.first_byte_s = first_byte_s


USUAL_LIMITS: Final = TimeLimits()


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class RuntimeRequest:
    """One validated request.

    num_slots: engine sequences it occupies at once (n x prompts x best_of).
    num_prompt_tokens: estimate from num_prompt_bytes, the text's UTF-8 bytes; the engine's usage is
        the truth.
    max_tokens: cap on generated tokens of one sequence, always set (>= 1).
    body: the client's JSON object after validation; our own fields are already taken out.
    via: the API the client used, where its request was translated into `kind`.
    cap_field: where the client itself named the cap; None: it did not. In `body` it is `max_tokens`.
    include_usage: the client asked for the usage event of a stream.
    max_attempts: engines that may be given it, where the client limits that; None: as configured.
    fingerprint: equal for two sendings of one body, and hardly ever for two bodies; 0: unknown.
    num_retries: how often its client says to have sent it before; None: it does not say.
    arrived_at: monotonic; created: Unix seconds.
    """

    id: Final[str]
    model: Final[str]
    kind: Final[EndpointKind]
    body: Final[Mapping[str, Any]]
    arrived_at: Final[float]
    created: Final[int]
    tenant: Final[str]
    priority: Final[int]
    limits: Final[TimeLimits]
    stream: Final[bool]
    include_usage: Final[bool]
    num_slots: Final[int]
    num_prompt_tokens: Final[int]
    num_prompt_bytes: Final[int]
    max_tokens: Final[int]
    cap_field: Final[str | None]
    via: Final[EndpointKind | None]
    max_attempts: Final[int | None]
    fingerprint: Final[int]
    num_retries: Final[int | None]

    def __init__(  # noqa: PLR0913 - a record, made by name
        self,
        *,
        id: str,
        model: str,
        kind: EndpointKind,
        body: Mapping[str, Any],
        arrived_at: float,
        created: int,
        tenant: str = "anonymous",
        priority: int = DEFAULT_PRIORITY,
        limits: TimeLimits = USUAL_LIMITS,
        stream: bool = False,
        include_usage: bool = False,
        num_slots: int = 1,
        num_prompt_tokens: int = 1,
        num_prompt_bytes: int = 0,
        max_tokens: int = 1,
        cap_field: str | None = None,
        via: EndpointKind | None = None,
        max_attempts: int | None = None,
        fingerprint: int = 0,
        num_retries: int | None = None,
    ) -> None:
        self.id = id
        self.model = model
        self.kind = kind
        self.body = body
        self.arrived_at = arrived_at
        self.created = created
        self.tenant = tenant
        self.priority = priority
        self.limits = limits
        self.stream = stream
        self.include_usage = include_usage
        self.num_slots = num_slots
        self.num_prompt_tokens = num_prompt_tokens
        self.num_prompt_bytes = num_prompt_bytes
        self.max_tokens = max_tokens
        self.cap_field = cap_field
        self.via = via
        self.max_attempts = max_attempts
        self.fingerprint = fingerprint
        self.num_retries = num_retries

    @property
    def endpoint(self) -> EndpointKind:
        """The API the client used: the label in metrics and logs."""
        return self.via or self.kind
