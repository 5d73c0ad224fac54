"""Requests that llama.cpp answers in several short calls: embeddings, one per input, and tokenize.

Pure: a `Steps` says what to ask next and is given each answer; `step_stream` does the asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.wire.bodies import PlainReply
from llm_runtime.wire.usage import read_usage


class Steps(Protocol):
    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Path and body of the next call; None when all are made."""
        ...

    def take(self, answer: dict[str, Any]) -> None:
        """The answer to that call. Raises BackendProtocolError for what it cannot be."""
        ...

    def reply(self) -> PlainReply: ...

    def spent(self) -> Usage: ...


def steps_for(request: RuntimeRequest, context_tokens: int) -> Steps:
    if request.kind is EndpointKind.EMBEDDINGS:
        return EmbeddingSteps(request)
    return TokenizeSteps(request, context_tokens)


class EmbeddingSteps:
    """One input at a time: then a request takes one slot however many it has, and can be stopped
    between two."""

    def __init__(self, request: RuntimeRequest) -> None:
        self._model = request.model
        self._encoding = request.body.get("encoding_format", "float")
        inputs = request.body["input"]
        is_single = isinstance(inputs, str) or isinstance(inputs[0], int)
        self._inputs: list[Any] = [inputs] if is_single else inputs
        self._vectors: list[Any] = []
        self._num_tokens = 0

    def next(self) -> tuple[str, dict[str, Any]] | None:
        index = len(self._vectors)
        if index == len(self._inputs):
            return None
        return "/v1/embeddings", {"input": self._inputs[index], "encoding_format": self._encoding}

    def take(self, answer: dict[str, Any]) -> None:
        try:
            (item,) = answer["data"]
            vector = item["embedding"]
        except (KeyError, TypeError, ValueError):
            raise BackendProtocolError("The engine's answer has no embedding.") from None
        self._vectors.append(vector)
        usage = read_usage(answer.get("usage"))
        self._num_tokens += usage.prompt_tokens if usage is not None else 0

    def reply(self) -> PlainReply:
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(self._vectors)
        ]
        usage = {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens}
        body = {"object": "list", "data": data, "model": self._model, "usage": usage}
        return PlainReply(orjson.dumps(body), Usage(self._num_tokens), "stop")

    def spent(self) -> Usage:
        return Usage(self._num_tokens, estimated=len(self._vectors) < len(self._inputs))


class TokenizeSteps:
    """In vLLM's shape. A conversation is put through the model's template first, as a chat would be."""

    def __init__(self, request: RuntimeRequest, context_tokens: int) -> None:
        self._body: Mapping[str, Any] = request.body
        self._context_tokens = context_tokens
        self._text: str | None = request.body.get("prompt")
        self._tokens: list[int] | None = None
        self._pieces: list[str] = []

    def next(self) -> tuple[str, dict[str, Any]] | None:
        body = self._body
        if self._tokens is not None:
            return None
        if self._text is None:
            asked = {"messages": body["messages"]}
            for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
                if name in body:
                    asked[name] = body[name]
            return "/apply-template", asked
        # A template writes special tokens itself; a bare text gets those that begin a text.
        add_special = body.get("add_special_tokens", "prompt" in body)
        return "/tokenize", {"content": self._text, "add_special": add_special, "with_pieces": True}

    def take(self, answer: dict[str, Any]) -> None:
        try:
            if self._text is None:
                self._text = str(answer["prompt"])
                return
            tokens = [int(token["id"]) for token in answer["tokens"]]
            self._pieces = [_text_of(token["piece"]) for token in answer["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise BackendProtocolError("The engine's answer has no tokens.") from None
        self._tokens = tokens

    def reply(self) -> PlainReply:
        tokens = self._tokens or []
        body = {
            "count": len(tokens),
            "max_model_len": self._context_tokens,
            "tokens": tokens,
            "token_strs": self._pieces if self._body.get("return_token_strs") else None,
        }
        return PlainReply(orjson.dumps(body), Usage(), "stop")

    def spent(self) -> Usage:
        return Usage()


def _text_of(piece: Any) -> str:
    """A token that is part of a character comes as its bytes."""
    return piece if isinstance(piece, str) else bytes(piece).decode(errors="replace")
