"""Requests beside chat and completions: read for what the runtime must know, passed on otherwise.

Only the members that steer the runtime (model, stream, caps, priority) and the forms of the content
are checked here; what an engine makes of the rest is its own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.messages import read_messages, utf8_length
from llm_runtime.wire.parsed_request import TIER_PRIORITY, ParsedRequest
from llm_runtime.wire.schemas.common import SharedFields
from llm_runtime.wire.schemas.embeddings import EmbeddingsRequest
from llm_runtime.wire.schemas.messages import MessagesRequest
from llm_runtime.wire.schemas.rerank import RerankRequest
from llm_runtime.wire.schemas.responses import ResponsesRequest
from llm_runtime.wire.schemas.tokenize import TokenizeRequest
from llm_runtime.wire.schemas.translate import missing, validate

_OURS = frozenset({"priority", "service_tier", "stream"})
"""Never part of the body that goes on: read here, or the engine adapter's to set."""

_NOT_TEXT = frozenset(
    {"source", "image_url", "input_audio", "audio", "file", "file_data", "data", "signature"}
)
"""Members that hold or name something else than text of the prompt."""

GENERATES_NOTHING = 1
"""The cap of requests that make no tokens: the least that a cap can be."""


def parse_embeddings(body: dict[str, Any]) -> ParsedRequest:
    """One request is one piece of work, however many inputs it has. Raises InvalidRequest."""
    present = _present(body)
    request = validate(EmbeddingsRequest, present)
    inputs = request.input
    num_tokens = _num_tokens(inputs)
    prompt_bytes = text_bytes(inputs) if num_tokens is None else 0
    return _read(request, present, prompt_bytes, GENERATES_NOTHING, exact=num_tokens)


def parse_responses(body: dict[str, Any]) -> ParsedRequest:
    """Raises InvalidRequest."""
    present = _present(body)
    request = validate(ResponsesRequest, present)
    if request.input is None and request.prompt is None:
        raise missing("input")
    prompt_bytes = sum(text_bytes(present.get(name)) for name in ("input", "instructions", "tools"))
    return _read(
        request,
        present,
        prompt_bytes,
        request.max_output_tokens,
        stream=bool(request.stream),
        tier=request.service_tier,
    )


def parse_messages(body: dict[str, Any]) -> ParsedRequest:
    """Raises InvalidRequest."""
    present = _present(body)
    request = validate(MessagesRequest, present)
    prompt_bytes = sum(text_bytes(present.get(name)) for name in ("system", "messages", "tools"))
    return _read(request, present, prompt_bytes, request.max_tokens, stream=bool(request.stream))


def parse_rerank(body: dict[str, Any]) -> ParsedRequest:
    """Raises InvalidRequest."""
    present = _present(body)
    request = validate(RerankRequest, present)
    # Each document is read together with the query.
    prompt_bytes = len(request.documents) * text_bytes(present["query"]) + text_bytes(present["documents"])
    return _read(request, present, prompt_bytes, GENERATES_NOTHING)


def parse_tokenize(body: dict[str, Any]) -> ParsedRequest:
    """Raises InvalidRequest."""
    present = _present(body)
    request = validate(TokenizeRequest, present)
    if request.prompt is None and request.messages is None:
        raise missing("prompt")
    if request.prompt is not None and request.messages is not None:
        raise InvalidRequest(
            "'prompt' and 'messages' exclude each other.", param="messages", reason="invalid_value"
        )
    if request.prompt is None:
        present["messages"] = read_messages(present["messages"], None).messages
    prompt_bytes = text_bytes(request.prompt if request.prompt is not None else present["messages"])
    return _read(request, present, prompt_bytes, GENERATES_NOTHING)


def text_bytes(content: Any) -> int:
    """UTF-8 bytes of all text in a piece of a request, images and the like left out. `content` is JSON
    of bounded depth."""
    if isinstance(content, str):
        return utf8_length(content)
    if isinstance(content, list):
        return sum(map(text_bytes, content))
    if isinstance(content, Mapping):
        return sum(text_bytes(value) for name, value in content.items() if name not in _NOT_TEXT)
    return 0


def _num_tokens(inputs: str | list[Any]) -> int | None:
    """Of inputs that came as token ids."""
    if isinstance(inputs, str) or isinstance(inputs[0], str):
        return None
    return len(inputs) if isinstance(inputs[0], int) else sum(map(len, inputs))


def _present(body: dict[str, Any]) -> dict[str, Any]:
    """Null means absent, as SDKs write what was not set."""
    return {key: value for key, value in body.items() if value is not None}


def _read(
    request: SharedFields,
    present: dict[str, Any],
    prompt_bytes: int,
    max_tokens: int | None,
    *,
    stream: bool = False,
    exact: int | None = None,
    tier: str | None = None,
) -> ParsedRequest:
    priority = request.priority
    if priority is None and tier is not None:
        priority = TIER_PRIORITY[tier]
    return ParsedRequest(
        model=request.model,
        stream=stream,
        include_usage=False,
        num_slots=1,
        num_prompts=1,
        max_tokens=max_tokens,
        priority=priority,
        service_tier=tier,
        body={key: value for key, value in present.items() if key not in _OURS},
        part_types=frozenset(),
        prompt_bytes=prompt_bytes,
        prompt_tokens_exact=exact,
        extras={},
    )
