"""What vLLM can be asked for: which request fields pass and which are refused.

vLLM honours almost everything and accepts anything: what it does not know it drops with a line in its
log. So fields pass by an allow-list made from its request schemas (those of 0.32), and whatever else a
client sends is refused by name. Left out on purpose: what concerns the machinery behind the engine
(`request_id`, `kv_transfer_params`, `vllm_xargs`, `prompt_embeds`, ...) is no client's business.
Values are vLLM's to judge: its own refusals are clear, and go to the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.request_fields import WITHOUT_EFFECT, unsupported

GENERATIONS = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS})

_GENERATION = frozenset(
    {
        "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "frequency_penalty",
        "ignore_eos", "include_stop_str_in_output", "logit_bias", "logprob_token_ids", "logprobs",
        "max_tokens", "min_p", "min_tokens", "n", "presence_penalty", "repetition_detection",
        "repetition_penalty", "response_format", "return_tokens_as_token_ids", "seed",
        "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids",
        "stream_interval", "structured_outputs", "temperature", "thinking_token_budget", "top_k", "top_p",
        "truncate_prompt_tokens", "truncation_side",
    }
)  # fmt: skip

_WHOLE_ONLY = frozenset({"length_penalty", "prompt_logprobs", "return_token_ids", "use_beam_search"})
"""What vLLM says, or may say, only of a finished answer: such plain replies are asked for as such."""

_PASSED: Mapping[EndpointKind, frozenset[str]] = {
    EndpointKind.CHAT: _GENERATION
    | {
        "add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message",
        "documents", "echo", "include_reasoning", "media_io_kwargs", "messages", "mm_processor_kwargs",
        "parallel_tool_calls", "reasoning_effort", "tool_choice", "tools", "top_logprobs",
    },
    EndpointKind.COMPLETIONS: _GENERATION | {"echo", "prompt", "suffix"},
}  # fmt: skip

_MACHINERY = frozenset(
    {
        "ec_transfer_params", "kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "prompt_embeds",
        "request_id", "session_id", "vllm_xargs",
    }
)  # fmt: skip
"""What no client has any business with, where everything else passes."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "tools": ([],),
    "length_penalty": (1,),
    "prompt_logprobs": (0,),
    "return_token_ids": (False,),
    "use_beam_search": (False,),
}
"""Values that ask for nothing, and that vLLM would refuse or drop."""


def check(request: RuntimeRequest) -> None:
    """Raises InvalidRequest naming the first field that vLLM would ignore, or that is not for clients."""
    if request.kind not in GENERATIONS:
        _check_passed(request)
        return
    passed = _PASSED[request.kind]
    for name, value in request.body.items():
        if name in passed or name in WITHOUT_EFFECT or value in _NEUTRAL.get(name, ()):
            continue
        if name in _WHOLE_ONLY:
            if request.stream:
                raise unsupported(name, "the engine knows it only of whole answers; ask without 'stream'")
        elif name != "best_of":
            raise unsupported(name)
        elif value != request.body.get("n", 1):
            raise unsupported(name, "the engine does not rank candidates; ask for 'n' instead")


def _check_passed(request: RuntimeRequest) -> None:
    """The other families are vLLM's to judge, but for what would leave the request's own limits."""
    for name in request.body:
        if name in _MACHINERY:
            raise unsupported(name)
    if request.body.get("background"):
        raise unsupported("background", "an answer nobody waits for cannot be limited or cancelled here")


def asks_for_whole_answer(request: RuntimeRequest) -> bool:
    """Whether a checked request wants something that vLLM's streams do not say."""
    return any(_is_asked(request.body, name) for name in _WHOLE_ONLY)


def engine_body(request: RuntimeRequest) -> dict[str, Any]:
    """vLLM's version of a checked request's body, without what the backend itself adds."""
    passed = _PASSED[request.kind] | _WHOLE_ONLY
    body = {name: value for name, value in request.body.items() if name in passed}
    for name in _NEUTRAL.keys() & body.keys():
        if not _is_asked(body, name):
            del body[name]
    if "tools" not in body:  # vLLM refuses a choice among none
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    body["max_tokens"] = request.max_tokens
    return body


def _is_asked(body: Mapping[str, Any], name: str) -> bool:
    return name in body and body[name] not in _NEUTRAL.get(name, ())
