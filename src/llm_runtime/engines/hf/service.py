"""The engine program's HTTP side: OpenAI's chat and text completions over one generating thread.

One request is worked on at a time, the others wait in the order they came. A caller who names his
request in the query (`?run=ID`) can end it with `DELETE /runs/ID`, which is answered once the
generating thread is done with it: an answered wish, where a closed connection is a wish only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Executor
from typing import Any
from urllib.parse import parse_qs

import orjson

from llm_runtime.core.errors import (
    BodyTooLarge,
    ClientGone,
    InvalidRequest,
    LLMRuntimeError,
    ModelNotFound,
    RouteNotFound,
)
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.hf.answering import Cancelled, EngineBroken, Job, Model
from llm_runtime.engines.hf.fields import check
from llm_runtime.wire.errors import error_body, error_event, error_object
from llm_runtime.wire.json import parse_body
from llm_runtime.wire.parsed_request import ParsedRequest
from llm_runtime.wire.requests import parse_chat, parse_completions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_REMEMBERED = 1024

_KINDS: dict[str, tuple[EndpointKind, Callable[[dict[str, Any]], ParsedRequest]]] = {
    "/v1/chat/completions": (EndpointKind.CHAT, parse_chat),
    "/v1/completions": (EndpointKind.COMPLETIONS, parse_completions),
}


class _Gone(Exception):
    """The caller closed the connection before its request was complete."""


class Service:
    """An ASGI application; owned by the engine program, called from its loop only.

    default_max_tokens: where a request names no cap.
    """

    def __init__(self, name: str, model: Model, worker: Executor, default_max_tokens: int) -> None:
        self._name = name
        self._model = model
        self._worker = worker
        self._default_max_tokens = default_max_tokens
        self._created = int(time.time())
        self._jobs: dict[str, Job] = {}
        self._unwanted: OrderedDict[str, None] = OrderedDict()
        self._num_steps_before = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except _Gone:
            return
        except LLMRuntimeError as error:
            await _reply(send, _status(error), error_body(_error_object(error)))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path in _KINDS:
            await self._generate(scope, receive, send)
        elif method == "DELETE" and path.startswith("/runs/"):
            await self._end_run(path.removeprefix("/runs/"))
            await _reply(send, 200, b"{}")
        elif method == "GET" and path == "/v1/models":
            await _reply(send, 200, orjson.dumps(self._models()))
        elif method == "GET" and path == "/health":
            await _reply(send, 200, orjson.dumps({"status": "ok", "steps": self._num_steps()}))
        else:
            raise RouteNotFound(f"There is no {method} {path} here.")

    def _models(self) -> dict[str, Any]:
        entry = {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "llm-runtime",
            "max_model_len": self._model.context_tokens,
        }
        return {"object": "list", "data": [entry]}

    def _num_steps(self) -> int:
        """Grows whenever the generating thread gets a layer of a prompt or a token further."""
        return self._num_steps_before + sum(job.num_steps for job in self._jobs.values())

    # ---- requests

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        run_id = _run_id(scope)
        job = self._job(scope["path"], await _read_body(receive))
        if run_id in self._unwanted:
            raise InvalidRequest("The request was cancelled before it came.")
        run_id = run_id or f"connection-{id(job)}"
        if run_id in self._jobs:
            raise InvalidRequest(f"A run called {run_id!r} is under way.", param="run")
        self._jobs[run_id] = job
        watching = asyncio.create_task(_cancel_when_gone(receive, job))
        try:
            job.start(self._worker, self._model)
            await self._send_answer(job, send)
        finally:
            job.cancel()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await job.over.wait()
            self._num_steps_before += job.num_steps
            del self._jobs[run_id]

    def _job(self, path: str, body: bytes) -> Job:
        kind, parse = _KINDS[path]
        request = parse(parse_body(body))
        if request.model != self._name:
            raise ModelNotFound(f"The model {request.model!r} is not served here.", param="model")
        check(kind, request.body)
        request.body.setdefault("max_tokens", self._default_max_tokens)
        return Job(kind, request)

    async def _send_answer(self, job: Job, send: Send) -> None:
        streaming = False
        async for piece in job.pieces():
            if not job.request.stream:
                await _reply(send, 200, piece)
            elif streaming:
                await _send_more(send, piece)
            else:
                streaming = True
                await _start_stream(send, piece)
        if job.error is not None:
            await self._send_failure(job.error, send, streaming=streaming)
        elif streaming:
            await send({"type": "http.response.body", "body": b""})

    async def _send_failure(self, error: BaseException, send: Send, *, streaming: bool) -> None:
        if isinstance(error, EngineBroken):
            sys.stderr.flush()
            os._exit(1)  # whoever supervises this program starts a new one; connections end as lost
        told = error if isinstance(error, LLMRuntimeError) else LLMRuntimeError("The engine failed.")
        if isinstance(error, Cancelled):
            told = ClientGone("The request was cancelled.")
        if streaming:
            await send({"type": "http.response.body", "body": error_event(_error_object(told))})
        else:
            await _reply(send, _status(told), error_body(_error_object(told)))

    async def _end_run(self, run_id: str) -> None:
        """Returns when nothing of it is worked on; one that has not come yet is refused when it does."""
        job = self._jobs.get(run_id)
        if job is not None:
            job.cancel()
            await job.over.wait()
            return
        self._unwanted[run_id] = None
        if len(self._unwanted) > MAX_REMEMBERED:
            self._unwanted.popitem(last=False)


async def _cancel_when_gone(receive: Receive, job: Job) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    job.cancel()


async def _read_body(receive: Receive) -> bytes:
    parts, num_bytes = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > MAX_BODY_BYTES:
            raise BodyTooLarge(f"The request body is larger than {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body"):
            return b"".join(parts)


def _run_id(scope: Scope) -> str | None:
    values = parse_qs(scope["query_string"].decode("latin-1")).get("run")
    return values[0] if values else None


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _start_stream(send: Send, piece: bytes) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await _send_more(send, piece)


async def _send_more(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


def _status(error: LLMRuntimeError) -> int:
    if isinstance(error, ModelNotFound | RouteNotFound):
        return 404
    if isinstance(error, BodyTooLarge):
        return 413
    if isinstance(error, ClientGone):
        return 499
    return 400 if isinstance(error, InvalidRequest) else 500


def _error_object(error: LLMRuntimeError) -> dict[str, Any]:
    kind = "invalid_request_error" if isinstance(error, InvalidRequest) else "server_error"
    return error_object(error.message, kind, error.param, error.reason)
