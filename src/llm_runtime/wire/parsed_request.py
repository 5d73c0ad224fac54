"""`ParsedRequest`: what the wire reads out of a request's body, whichever API it came by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_runtime.core.request import DEFAULT_PRIORITY

TIER_PRIORITY: Final[dict[str, int]] = {
    "priority": 2,
    "fast": 2,
    "auto": DEFAULT_PRIORITY,
    "default": DEFAULT_PRIORITY,
    "scale": DEFAULT_PRIORITY,
    "flex": 8,
}


class ParsedRequest:
    """What a generation request asks for. Never changed once made; a class of its own instead of a frozen
    dataclass because one is made for every request, and this becomes a C structure where compiled.

    num_slots: engine sequences it needs at once, n (or best_of, if larger) x num_prompts.
    max_tokens: cap of one sequence, >= 1; `max_completion_tokens` wins over `max_tokens`, and 0
        counts as 1, as no engine generates nothing. None: the client names none.
    cap_field: the field the cap was named in; some upstreams know only the newer one.
    priority: 0 the highest ... 9; `priority` wins over `service_tier`; None: the client names none.
    body: the client's object without nulls, without our own fields (`priority`, `service_tier`,
        `stream`, `stream_options`), with one `max_tokens` at most.
    part_types: of message content arrays.
    prompt_bytes: UTF-8 bytes of text the prompt is made of, tool definitions included.
    prompt_tokens_exact: known only where the prompt came as token ids.
    extras: members of `body` that no schema knows; engines refuse or forward them by allow-list.
    """

    __slots__ = (
        "body",
        "cap_field",
        "extras",
        "include_usage",
        "max_tokens",
        "model",
        "num_prompts",
        "num_slots",
        "part_types",
        "priority",
        "prompt_bytes",
        "prompt_tokens_exact",
        "service_tier",
        "stream",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record's fields, given in this order where it counts
        self,
        model: str,
        stream: bool,
        include_usage: bool,
        num_slots: int,
        num_prompts: int,
        max_tokens: int | None,
        priority: int | None,
        service_tier: str | None,
        body: dict[str, Any],
        part_types: frozenset[str],
        prompt_bytes: int,
        prompt_tokens_exact: int | None,
        extras: Mapping[str, Any],
        cap_field: str | None = None,
    ) -> None:
        self.model: Final = model
        self.stream: Final = stream
        self.include_usage: Final = include_usage
        self.num_slots: Final = num_slots
        self.num_prompts: Final = num_prompts
        self.max_tokens: Final = max_tokens
        self.priority: Final = priority
        self.service_tier: Final = service_tier
        self.body: Final = body
        self.part_types: Final = part_types
        self.prompt_bytes: Final = prompt_bytes
        self.prompt_tokens_exact: Final = prompt_tokens_exact
        self.extras: Final = extras
        self.cap_field: Final = cap_field

    def steered(self, *, stream: bool, include_usage: bool, priority: int | None) -> ParsedRequest:
        """The same, with what another request says of how it is to be run."""
        return ParsedRequest(
            self.model,
            stream,
            include_usage,
            self.num_slots,
            self.num_prompts,
            self.max_tokens,
            priority,
            self.service_tier,
            self.body,
            self.part_types,
            self.prompt_bytes,
            self.prompt_tokens_exact,
            self.extras,
            self.cap_field,
        )

    def _members(self) -> tuple[Any, ...]:
        how = (self.model, self.stream, self.include_usage, self.num_slots, self.num_prompts)
        said = (self.max_tokens, self.cap_field, self.priority, self.service_tier)
        prompt = (self.part_types, self.prompt_bytes, self.prompt_tokens_exact)
        return (*how, *said, *prompt, self.body, self.extras)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParsedRequest) and self._members() == other._members()

    __hash__ = None  # type: ignore[assignment]  # its body cannot be hashed either

    def __repr__(self) -> str:
        return f"ParsedRequest{self._members()!r}"
