"""What a reader of an engine's answer must know about the request and about the engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.shapes import Shapes

TEXT_FINISH_REASONS: Final = frozenset({"stop", "length", "content_filter"})
CHAT_FINISH_REASONS: Final = TEXT_FINISH_REASONS | {"tool_calls", "function_call"}

FINISH_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "eos": "stop",
        "eos_token": "stop",
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_length": "length",
        "tool_use": "tool_calls",
        "safety": "content_filter",
    }
)
"""What engines say for the reasons OpenAI knows. Any other word is a failure, never a `stop`."""

ENGINE_MEMBERS: Final = frozenset({"timings", "prompt_progress", "__verbose"})
"""Top-level members that are the engine's own business."""


_CHAT: Final = EndpointKind.CHAT
_CHUNK: Final = "chat.completion.chunk"
_BODY: Final = "chat.completion"
_TEXT: Final = "text_completion"


class RelayOptions:
    """One request as the wire sees it, and the quirks of the engine that answers. Never changed.

    id, created: ours, used where the engine has none. keep_engine_id: keep the first id it says.
    model: always the one shown.
    include_usage: the client asked for the usage event of a stream.
    num_choices: answers expected (n x num_prompts).
    prompt_tokens_estimate: for an engine that never reports usage.
    usage_per_choice: see UsageMeter. translate_logprobs: legacy completions come with logprobs in
    chat shape (llama.cpp). drop_alternatives: only the chosen tokens' log probabilities were asked
    for. strip_members: top-level members that clients never see. shapes: what streams of that engine's were
    like for the same model and the same other options; None: each is learnt anew.
    is_chat, finish_reasons, chunk_object, body_object: what follows from the kind.
    """

    __slots__ = (
        "body_object",
        "chunk_object",
        "created",
        "drop_alternatives",
        "finish_aliases",
        "finish_reasons",
        "id",
        "include_usage",
        "is_chat",
        "keep_engine_id",
        "kind",
        "model",
        "num_choices",
        "num_prompts",
        "prompt_tokens_estimate",
        "shapes",
        "strip_members",
        "translate_logprobs",
        "usage_per_choice",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        kind: EndpointKind,
        id: str,
        created: int,
        model: str,
        include_usage: bool = False,
        num_choices: int = 1,
        num_prompts: int = 1,
        prompt_tokens_estimate: int = 0,
        keep_engine_id: bool = True,
        usage_per_choice: bool = False,
        translate_logprobs: bool = False,
        drop_alternatives: bool = False,
        strip_members: frozenset[str] = ENGINE_MEMBERS,
        finish_aliases: Mapping[str, str] = FINISH_ALIASES,
        shapes: Shapes | None = None,
    ) -> None:
        self.kind: Final = kind
        self.id: Final = id
        self.created: Final = created
        self.model: Final = model
        self.include_usage: Final = include_usage
        self.num_choices: Final = num_choices
        self.num_prompts: Final = num_prompts
        self.prompt_tokens_estimate: Final = prompt_tokens_estimate
        self.keep_engine_id: Final = keep_engine_id
        self.usage_per_choice: Final = usage_per_choice
        self.translate_logprobs: Final = translate_logprobs
        self.drop_alternatives: Final = drop_alternatives
        self.strip_members: Final = strip_members
        self.finish_aliases: Final = finish_aliases
        self.shapes: Final = shapes
        self.is_chat: Final = kind is _CHAT
        self.finish_reasons: Final = CHAT_FINISH_REASONS if self.is_chat else TEXT_FINISH_REASONS
        self.chunk_object: Final = _CHUNK if self.is_chat else _TEXT
        self.body_object: Final = _BODY if self.is_chat else _TEXT
