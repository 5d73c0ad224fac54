"""What is sent to llama.cpp for one request, and how its answer is to be read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.llama_cpp.fields import engine_body, must_be_plain, wants_chosen_only
from llm_runtime.engines.llama_cpp.slots import TAG_FIELD
from llm_runtime.wire.answers import generation_reader
from llm_runtime.wire.options import RelayOptions

NOTHING: Mapping[str, Any] = MappingProxyType({})
_PATHS = {EndpointKind.CHAT: "/v1/chat/completions", EndpointKind.COMPLETIONS: "/v1/completions"}


def engine_call(request: RuntimeRequest, tag: int, extra: Mapping[str, Any] = NOTHING) -> EngineCall:
    """The engine always streams, with progress and usage: only then does closing the connection free
    its slot soon, during prefill as well. tag: by which /slots shows whose a busy slot is. extra: fields
    of the backend's own."""
    body = engine_body(request)
    body[TAG_FIELD] = tag
    body.update(extra)
    plain = must_be_plain(request)
    if not plain:
        body["stream"] = True
        body["return_progress"] = True
        body["stream_options"] = {"include_usage": True}
    num_prompts = _num_prompts(request.body.get("prompt"))
    completions = request.kind is EndpointKind.COMPLETIONS
    options = RelayOptions(
        kind=request.kind,
        id=f"{'cmpl' if completions else 'chatcmpl'}-{request.id}",
        created=request.created,
        model=request.model,
        include_usage=request.include_usage,
        num_choices=request.num_slots,
        num_prompts=num_prompts,
        prompt_tokens_estimate=request.num_prompt_tokens,
        keep_engine_id=not completions,
        usage_per_choice=True,
        translate_logprobs=completions,
        drop_alternatives=wants_chosen_only(request),
    )
    reader = partial(generation_reader, options, stream=False) if plain else None
    return EngineCall(
        _PATHS[request.kind], orjson.dumps(body), options, assemble=not request.stream, reader=reader
    )


def _num_prompts(prompt: Any) -> int:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
