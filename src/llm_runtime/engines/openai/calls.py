"""What is sent upstream for one request, and how its answer is to be read.

Every field of the client's goes on; the upstream judges them. Only ours are changed: the model's name,
`stream`, and in streams of chats and completions the usage, which is always asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.wire.answers import AnswerReader, WholeBody, generation_reader, is_json
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.plain_bodies import plain_reply
from llm_runtime.wire.shapes import Shapes
from llm_runtime.wire.typed_bodies import typed_stream_of_body
from llm_runtime.wire.typed_events import TypedEventRelay

Refusing = Callable[[Exchange, bytes, RuntimeRequest], LLMRuntimeError]

_GENERATIONS: Final = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS})
_PREFIXES: Final = {EndpointKind.CHAT: "chatcmpl", EndpointKind.COMPLETIONS: "cmpl"}
_NO_MEMBERS: Final[frozenset[str]] = frozenset()


def upstream_body(request: RuntimeRequest, name: str, default_cap: int | None) -> dict[str, Any]:
    """name: the model's upstream. default_cap: added where the client names none; None adds none."""
    body: dict[str, Any] = {**request.body, "model": name}
    generation = request.kind in _GENERATIONS
    if request.cap_field == "max_completion_tokens":
        body["max_completion_tokens"] = body.pop("max_tokens")
    elif generation and default_cap is not None and "max_tokens" not in body:
        body["max_tokens"] = default_cap
    if request.stream:
        body["stream"] = True
        if generation:
            body["stream_options"] = {"include_usage": True}
    return body


def upstream_call(
    request: RuntimeRequest,
    path: str,
    body: dict[str, Any],
    refusing: Refusing,
    *,
    send_once: bool = False,
    shapes: Shapes | None = None,
) -> EngineCall:
    """refusing: makes an error of an exchange, its body and the request. shapes: see `RelayOptions`."""
    asked = _Asked(request, _options(request, shapes), refusing)
    return EngineCall(
        path,
        orjson.dumps(body),
        asked.options,
        reader=asked.reader,
        refusal=asked.refusal,
        headers={"x-request-id": request.id},
        send_once=send_once,
    )


class _Asked:
    """One request, as its answer has to be read."""

    __slots__ = ("_refusing", "_request", "options")

    def __init__(self, request: RuntimeRequest, options: RelayOptions, refusing: Refusing) -> None:
        self.options = options
        self._request = request
        self._refusing = refusing

    def refusal(self, exchange: Exchange, body: bytes) -> LLMRuntimeError:
        return self._refusing(exchange, body, self._request)

    def reader(self, content_type: bytes | None) -> AnswerReader:
        options, stream = self.options, self._request.stream
        if options.kind in _GENERATIONS:
            return generation_reader(options, stream=stream, content_type=content_type)
        estimate = Usage(options.prompt_tokens_estimate, 0, estimated=True)
        if not stream:
            return WholeBody(lambda raw: plain_reply(raw, options), estimate)
        if is_json(content_type):
            return WholeBody(lambda raw: typed_stream_of_body(raw, options), estimate, streams=True)
        return TypedEventRelay(options)


def _options(request: RuntimeRequest, shapes: Shapes | None) -> RelayOptions:
    num_prompts = _num_prompts(request.body.get("prompt"))
    return RelayOptions(
        kind=request.kind,
        id=f"{_PREFIXES.get(request.kind, 'msg')}-{request.id}",
        created=request.created,
        model=request.model,
        include_usage=request.include_usage,
        num_choices=(request.body.get("n") or 1) * num_prompts,
        num_prompts=num_prompts,
        prompt_tokens_estimate=request.num_prompt_tokens,
        strip_members=_NO_MEMBERS,
        shapes=shapes,
    )


def _num_prompts(prompt: Any) -> int:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
