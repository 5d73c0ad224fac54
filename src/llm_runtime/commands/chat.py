"""`llm-runtime chat`: one question to a running server, its answer streamed to the terminal.

Standard library only, so that it starts at once, and through no proxy, so that loopback is loopback.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from llm_runtime.core.errors import BackendError, BackendUnavailable, ConfigError

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0
"""Silence after which the server is taken for dead; it sends comments far more often."""

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Question:
    """model: None takes the first that the server names. max_tokens: None leaves it to the server."""

    text: str
    model: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer. finish_reason: set on the piece that ends it."""

    text: str
    finish_reason: str | None = None


def ask(url: str, api_key: str | None, question: Question) -> Generator[Piece, None, None]:
    """Yields the answer as it comes, without control characters that a terminal would obey.

    Closing the iterator closes the connection, which cancels the request. Raises BackendUnavailable
    where no server answers and BackendError for what it answers instead of an answer.
    """
    with _connection(url) as (connection, prefix):
        headers = {"content-type": "application/json", "user-agent": "llm-runtime-chat"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        model = question.model or _first_model(connection, prefix, headers)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": question.text}],
            "stream": True,
        }
        if question.max_tokens is not None:
            body["max_tokens"] = question.max_tokens
        connection.request("POST", f"{prefix}/v1/chat/completions", json.dumps(body), headers)
        yield from _pieces(_checked(connection.getresponse()))


def _pieces(response: HTTPResponse) -> Iterator[Piece]:
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if error := event.get("error"):
            raise BackendError(f"the server ended the answer: {error.get('message', error)}")
        for choice in event.get("choices", ()):
            text = (choice.get("delta") or {}).get("content") or ""
            yield Piece(text.translate(_CONTROL), choice.get("finish_reason"))
    raise BackendError("the connection ended before the answer did")


def _first_model(connection: HTTPConnection, prefix: str, headers: dict[str, str]) -> str:
    connection.request("GET", f"{prefix}/v1/models", headers=headers)
    models = json.loads(_checked(connection.getresponse()).read())["data"]
    if not models:
        raise BackendError("the server has no model")
    return str(models[0]["id"])


def _checked(response: HTTPResponse) -> HTTPResponse:
    if response.status == 200:
        return response
    text = response.read(65536)
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"{response.reason}; is this an OpenAI-compatible server?"
    raise BackendError(f"the server answers {response.status}: {message}")


@contextmanager
def _connection(url: str) -> Iterator[tuple[HTTPConnection, str]]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {url} is no address of a server; it looks like http://127.0.0.1:8000")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise BackendUnavailable(
                f"no server answers at {url} ({error.strerror or error}); start one with: llm-runtime serve"
            ) from error
        connection.sock.settimeout(READ_TIMEOUT_S)
        yield connection, parts.path.rstrip("/").removesuffix("/v1")
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{url} does not answer as a server of ours would: {error!r}") from error
    finally:
        connection.close()
