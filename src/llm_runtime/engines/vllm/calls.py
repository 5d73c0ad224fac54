"""What is sent to vLLM for one request, and how its answer is to be read; the same for a server and
for the engine inside this process."""

from __future__ import annotations

from typing import Any

import orjson

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.vllm.fields import asks_for_whole_answer, engine_body
from llm_runtime.wire.answers import generation_reader
from llm_runtime.wire.options import RelayOptions

PATHS = {EndpointKind.CHAT: "/v1/chat/completions", EndpointKind.COMPLETIONS: "/v1/completions"}

TOKENS_PER_EVENT = 8
"""Of an answer that is put together here anyway: fewer events cost both processes less. The first and
the last token come at once all the same. Older versions of vLLM ignore the wish."""


def vllm_body(request: RuntimeRequest, *, with_priority: bool) -> dict[str, Any]:
    """The request's body as vLLM gets it. It always streams, unless the client wants something that
    only whole answers have: then progress shows, the first token has an instant, and what was used
    until a cancellation is known. with_priority: vLLM orders by it (lower is earlier, as with us).
    """
    body = engine_body(request)
    body["request_id"] = request.id
    if with_priority:
        body["priority"] = request.priority
    if not asks_for_whole_answer(request):
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if not request.stream:
            body["stream_options"]["continuous_usage_stats"] = True
            body.setdefault("stream_interval", TOKENS_PER_EVENT)
    return body


def relay_options(request: RuntimeRequest) -> RelayOptions:
    return RelayOptions(
        kind=request.kind,
        id=f"{_prefix(request)}-{request.id}",
        created=request.created,
        model=request.model,
        include_usage=request.include_usage,
        num_choices=request.num_slots,
        num_prompts=num_prompts(request),
        prompt_tokens_estimate=request.num_prompt_tokens,
    )


def engine_call(request: RuntimeRequest, *, with_priority: bool) -> EngineCall:
    """For vLLM's HTTP server."""
    options = relay_options(request)
    return EngineCall(
        PATHS[request.kind],
        orjson.dumps(vllm_body(request, with_priority=with_priority)),
        options,
        reader=lambda content_type: generation_reader(
            options, stream=request.stream, content_type=content_type
        ),
    )


def engine_ids(request: RuntimeRequest) -> tuple[str, ...]:
    """The names under which vLLM knows the request: a chat is one, each prompt of a completion is."""
    name = f"{_prefix(request)}-{request.id}"
    if request.kind is EndpointKind.CHAT:
        return (name,)
    return tuple(f"{name}-{position}" for position in range(num_prompts(request)))


def num_prompts(request: RuntimeRequest) -> int:
    prompt = request.body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _prefix(request: RuntimeRequest) -> str:
    return "cmpl" if request.kind is EndpointKind.COMPLETIONS else "chatcmpl"
