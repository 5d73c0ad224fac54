"""What llama.cpp can be asked for: which request fields pass, which mean nothing, which are refused.

Fields pass by allow-list only, because the engine honours members that are none of a client's
business (`id_slot`, `n_probs` of any size, cache files) and silently ignores much of what it lacks.
What would be ignored is refused by name instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.request_fields import WITHOUT_EFFECT

_SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "logit_bias",
        "stop", "seed", "max_tokens", "ignore_eos",
    }
)  # fmt: skip

_PASSED: Mapping[EndpointKind, frozenset[str]] = {
    EndpointKind.CHAT: _SAMPLING
    | {
        "messages", "n", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "response_format", "chat_template_kwargs",
    },
    EndpointKind.COMPLETIONS: _SAMPLING | {"prompt", "n", "logprobs"},
    EndpointKind.EMBEDDINGS: frozenset({"input", "encoding_format"}),
    EndpointKind.TOKENIZE: frozenset(
        {
            "prompt", "messages", "add_generation_prompt", "add_special_tokens", "return_token_strs", "tools",
            "chat_template_kwargs",
        }
    ),
}  # fmt: skip

_RENAMED = {"repetition_penalty": "repeat_penalty"}


_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "logit_bias": ({},),
}
"""Values that ask for nothing, so that even an engine without the feature obeys them."""


@dataclass(frozen=True, slots=True)
class TemplateAbilities:
    """What the model's chat template can express, as the engine's /props tells; all off before that."""

    tools: bool = False

    @classmethod
    def of_props(cls, props: Mapping[str, Any]) -> TemplateAbilities:
        caps = props.get("chat_template_caps")
        return cls(tools=bool(isinstance(caps, Mapping) and caps.get("supports_tools")))


def check(request: RuntimeRequest, abilities: TemplateAbilities) -> None:
    """Raises InvalidRequest naming the first field that would be ignored or that breaks the engine."""
    passed = _PASSED[request.kind]
    for name, value in request.body.items():
        if name in WITHOUT_EFFECT or (name in _NEUTRAL and value in _NEUTRAL[name]):
            continue
        if name in passed:
            _check_value(request, name, abilities)
        elif name == "best_of":
            if value != request.body.get("n", 1):
                raise _refused(name, "this engine cannot rank candidates; ask for 'n' instead")
        elif name not in _RENAMED:
            raise _refused(name, "the engine behind this model does not support it")


def _check_value(request: RuntimeRequest, name: str, abilities: TemplateAbilities) -> None:
    if name in ("tools", "tool_choice", "parallel_tool_calls"):
        if not abilities.tools:
            raise _refused(name, "this model's chat template has no tool calls")
        if name == "tool_choice" and request.body[name] != "auto":
            raise _refused(name, "the engine cannot force a call; it would ignore this")
    elif name == "logprobs" and request.kind is EndpointKind.COMPLETIONS:
        if isinstance(request.body["prompt"], list) and len(request.body["prompt"]) > 1:
            raise _refused(name, "logprobs of several prompts at once are not supported")
    elif name == "logprobs" and request.body.get("tools") and request.stream:
        raise _refused(name, "the engine cannot stream log probabilities together with 'tools'")
    elif name == "response_format" and request.body.get("tools"):
        raise _refused(name, "the engine cannot combine it with 'tools'")


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter '{name}': {why}.", param=name, reason="unsupported_parameter"
    )


def engine_body(request: RuntimeRequest) -> dict[str, Any]:
    """The engine's version of a checked request's body, without what the backend itself adds."""
    passed = _PASSED[request.kind]
    body = {name: value for name, value in request.body.items() if name in passed}
    for name, engine_name in _RENAMED.items():
        if name in request.body:
            body[engine_name] = request.body[name]
    for name, values in _NEUTRAL.items():
        if name in body and body[name] in values:
            del body[name]
    if request.body.get("tools") and request.body.get("tool_choice") == "none":
        body["tool_choice"] = "none"  # beside tools it forbids a call
    body["max_tokens"] = request.max_tokens
    if wants_chosen_only(request):
        # The engine gives 20 alternatives where none are named, and no probability at all for 0.
        body["top_logprobs" if request.kind is EndpointKind.CHAT else "logprobs"] = 1
    return body


def must_be_plain(request: RuntimeRequest) -> bool:
    """Whether the engine can only answer in one piece: log probabilities beside tools. Such a request
    is cancelled late, because the engine looks at a connection it does not write to only at the end."""
    return bool(request.body.get("tools") and request.body.get("logprobs"))


def wants_chosen_only(request: RuntimeRequest) -> bool:
    """Whether log probabilities were asked for, but none of alternatives."""
    logprobs = request.body.get("logprobs")
    if request.kind is EndpointKind.CHAT:
        return logprobs is True and not request.body.get("top_logprobs")
    return logprobs == 0 and logprobs is not False
