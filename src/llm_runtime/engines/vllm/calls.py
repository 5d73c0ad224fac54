"""What is sent to vLLM for one request, and how its answer is to be read; the same for a server and
for the engine inside this process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from llm_runtime.core.errors import LLMRuntimeError, UnsupportedEndpoint
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.http_stream import EngineCall, refusal_meaning
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.vllm.fields import GENERATIONS, asks_for_whole_answer, engine_body
from llm_runtime.wire.answers import AnswerReader, WholeBody, generation_reader
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.plain_bodies import plain_reply
from llm_runtime.wire.typed_events import TypedEventRelay

PATHS: Mapping[EndpointKind, str] = {
    EndpointKind.CHAT: "/v1/chat/completions",
    EndpointKind.COMPLETIONS: "/v1/completions",
    EndpointKind.RESPONSES: "/v1/responses",
    EndpointKind.MESSAGES: "/v1/messages",
    EndpointKind.EMBEDDINGS: "/v1/embeddings",
    EndpointKind.RERANK: "/v1/rerank",
    EndpointKind.TOKENIZE: "/tokenize",
}
"""All that a server may have; which of them it has depends on its model."""

PRIORITY_HEADER = "x-vllm-priority"

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
        num_choices=(request.body.get("n") or 1) * num_prompts(request),
        num_prompts=num_prompts(request),
        prompt_tokens_estimate=request.num_prompt_tokens,
    )


def engine_call(request: RuntimeRequest, *, with_priority: bool) -> EngineCall:
    """For vLLM's HTTP server."""
    if request.kind in GENERATIONS:
        body, headers = vllm_body(request, with_priority=with_priority), None
    else:
        body = {**request.body, "model": request.model}
        if request.stream:
            body["stream"] = True
        headers = {PRIORITY_HEADER: str(request.priority)} if with_priority else None
    options = relay_options(request)
    reader = partial(_reader, options, request.stream)
    path = PATHS[request.kind]
    return EngineCall(path, orjson.dumps(body), options, reader=reader, refusal=_refusal, headers=headers)


def _reader(options: RelayOptions, stream: bool, content_type: bytes | None) -> AnswerReader:
    if options.kind in GENERATIONS:
        return generation_reader(options, stream=stream, content_type=content_type)
    if stream:
        return TypedEventRelay(options)
    estimate = Usage(options.prompt_tokens_estimate, 0, estimated=True)
    return WholeBody(lambda raw: plain_reply(raw, options), estimate)


def _refusal(exchange: Exchange, body: bytes) -> LLMRuntimeError:
    """The model is always the one it serves, so what is not there is the endpoint."""
    if exchange.status in (404, 405, 501):
        return UnsupportedEndpoint("This model has no such endpoint.", param="model")
    return refusal_meaning(exchange.status, body)


def engine_ids(request: RuntimeRequest) -> tuple[str, ...]:
    """The names under which vLLM knows the request: a chat is one, each prompt of a completion is. None
    where vLLM makes up its own."""
    if request.kind not in GENERATIONS:
        return ()
    name = f"{_prefix(request)}-{request.id}"
    if request.kind is EndpointKind.CHAT:
        return (name,)
    return tuple(f"{name}-{position}" for position in range(num_prompts(request)))


def num_prompts(request: RuntimeRequest) -> int:
    prompt = request.body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


_PREFIXES = {EndpointKind.CHAT: "chatcmpl", EndpointKind.COMPLETIONS: "cmpl"}


def _prefix(request: RuntimeRequest) -> str:
    return _PREFIXES.get(request.kind, "msg")
