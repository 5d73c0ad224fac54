"""What Transformers' `generate` can be asked for: fields that pass, that mean nothing, that are refused.

Used on both sides: by the backend before a request waits, and by the engine program for callers that
come to it directly. What would be ignored is refused by name instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.request_fields import WITHOUT_EFFECT, unsupported

_COMMON = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "logit_bias", "max_tokens",
        "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n",
    }
)  # fmt: skip

_PASSED: Mapping[EndpointKind, frozenset[str]] = {
    EndpointKind.CHAT: _COMMON | {"messages", "chat_template_kwargs"},
    EndpointKind.COMPLETIONS: _COMMON | {"prompt"},
}

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Values that ask for nothing, so that even an engine without the feature obeys them."""

GREEDY_BELOW = 1e-5
"""Temperatures below it mean the likeliest token; dividing by them would overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence is generated; None: the model's own default, else none at all.

    max_tokens: None lets it run to the end of the context. logit_bias: by token id.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Sampling:
        """From a body that was validated and checked."""
        stop = body.get("stop") or ()
        bias = body.get("logit_bias") or {}
        return cls(
            max_tokens=body.get("max_tokens"),
            min_tokens=body.get("min_tokens") or 0,
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            top_k=body.get("top_k"),
            min_p=body.get("min_p"),
            repetition_penalty=body.get("repetition_penalty"),
            seed=body.get("seed"),
            logit_bias={int(token): float(value) for token, value in bias.items()} or None,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(body.get("stop_token_ids") or ()),
            ignore_eos=bool(body.get("ignore_eos")),
        )


def check(kind: EndpointKind, body: Mapping[str, Any]) -> None:
    """Raises InvalidRequest naming the first field that would be ignored."""
    passed = _PASSED[kind]
    for name, value in body.items():
        if name in passed or name in WITHOUT_EFFECT:
            continue
        if name in _NEUTRAL and _is_neutral(value, _NEUTRAL[name]):
            continue
        if name == "best_of" and value in (0, 1, body.get("n")):
            continue
        raise unsupported(name)


def passed_body(kind: EndpointKind, body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a checked body that means something to the engine."""
    passed = _PASSED[kind]
    return {name: value for name, value in body.items() if name in passed}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    # False equals 0, and `logprobs: 0` of a legacy completion does ask for something.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
