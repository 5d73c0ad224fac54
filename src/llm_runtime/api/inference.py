"""The inference endpoints as raw ASGI: from headers read to the last byte written.

They stand in front of FastAPI's middleware stack (`api/app.py`), because that stack costs more than
everything here; so this module is also their error boundary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from llm_runtime.api.services import Services
from llm_runtime.core.errors import ClientGone, InvalidRequest, LLMRuntimeError
from llm_runtime.core.request import DEFAULT_PRIORITY, EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.runtime.handles import CompletionHandle, RequestHandle
from llm_runtime.telemetry.server_timing import server_timing
from llm_runtime.web.asgi import Receive, Scope, Send, header, request_id_of, send_bytes, send_error
from llm_runtime.web.body import check_media_type, read_body
from llm_runtime.web.disconnect import DisconnectWatch
from llm_runtime.web.errors import INTERNAL_ERROR, Header, row_of
from llm_runtime.web.stream import STREAM_HEADERS, StreamWriter
from llm_runtime.wire.dialects import dialect_for
from llm_runtime.wire.json import JsonLimits, parse_body
from llm_runtime.wire.requests import ParsedRequest

log = structlog.get_logger(__name__)

BIG_BODY_BYTES = 256 * 1024


class InferenceEndpoint:
    """One (method, path). Called by uvicorn in the request's own task."""

    def __init__(
        self,
        kind: EndpointKind,
        parse: Callable[[dict[str, Any]], ParsedRequest],
        services: Services,
        big_bodies: asyncio.Lock,
    ) -> None:
        self._kind = kind
        self._parse_request = parse
        self._services = services
        self._dialect = dialect_for(kind)
        self._big_bodies = big_bodies
        server = services.server
        self._json_limits = JsonLimits(max_messages=server.max_messages, max_tools=server.max_tools)
        limits = services.runtime.limits
        self._limits = TimeLimits(
            queue_s=limits.queue_timeout_s,
            request_s=limits.request_timeout_s,
            idle_s=limits.stream_idle_timeout_s,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_at = self._services.runtime.clock.now()
        request_id = request_id_of(scope)
        request: RuntimeRequest | None = None
        try:
            tenant = self._services.keys.identify(
                header(scope, b"authorization"), x_tenant_id=header(scope, b"x-tenant-id")
            )
            check_media_type(scope)
            body = await self._read(scope, receive)
            request = await self._request(scope, body, request_id, tenant, arrived_at)
            permit = self._services.runtime.admit(request)
            handle = self._services.runtime.submit(request, permit)
            if request.stream:
                await self._stream(handle, receive, send)
            else:
                await self._plain(handle, receive, send)
        except ClientGone:
            self._refused(request, ClientGone.reason, 499)
        except LLMRuntimeError as error:
            self._refused(request, error.reason, row_of(error).status)
            await send_error(send, error, request_id)
        except Exception:
            log.exception("request.crashed", request_id=request_id)
            self._refused(request, INTERNAL_ERROR.reason, 500)
            await send_error(send, INTERNAL_ERROR, request_id)

    def _refused(self, request: RuntimeRequest | None, reason: str, status: int) -> None:
        """What became a request is counted by its own events; the rest is counted here."""
        if request is None:
            self._services.events.refused(self._kind.value, status, reason)

    # ---- from bytes to a request

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limits = self._services.runtime.limits
        return await read_body(scope, receive, self._services.server.max_body_bytes, limits.body_timeout_s)

    async def _request(
        self, scope: Scope, body: bytes, request_id: str, tenant: str, arrived_at: float
    ) -> RuntimeRequest:
        if len(body) <= BIG_BODY_BYTES:
            parsed = self._parse(body)
        else:
            # One at a time and off the loop: a few huge prompts must not stop everybody's tokens.
            async with self._big_bodies:
                parsed = await asyncio.to_thread(self._parse, body)
        services = self._services
        pool = services.runtime.pool_for(parsed.model, self._kind)
        prompt_tokens = parsed.prompt_tokens_exact
        if prompt_tokens is None:
            prompt_tokens = services.estimator.estimate(parsed.model, parsed.prompt_bytes)
        max_tokens = parsed.max_tokens if parsed.max_tokens is not None else services.default_max_tokens
        context_tokens = pool.info.context_tokens
        if context_tokens is not None:
            max_tokens = min(max_tokens, context_tokens)
        request = RuntimeRequest(
            id=services.runtime.unique_id(request_id),
            model=parsed.model,
            kind=self._kind,
            body=parsed.body,
            arrived_at=arrived_at,
            created=int(services.runtime.clock.wall()),
            tenant=tenant,
            priority=parsed.priority if parsed.priority is not None else DEFAULT_PRIORITY,
            limits=self._time_limits(scope),
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            num_slots=parsed.num_slots,
            num_prompt_tokens=prompt_tokens,
            num_prompt_bytes=parsed.prompt_bytes,
            max_tokens=max_tokens,
        )
        services.runtime.check(request)
        return request

    def _parse(self, body: bytes) -> ParsedRequest:
        return self._parse_request(parse_body(body, self._json_limits))

    def _time_limits(self, scope: Scope) -> TimeLimits:
        """The server's limits, tightened by how long the client itself says it will wait: an answer
        that nobody reads any more is not worth computing."""
        given = header(scope, b"x-stainless-read-timeout")
        if given is None:
            return self._limits
        try:
            timeout_s = float(given)
        except ValueError:
            raise InvalidRequest("x-stainless-read-timeout is not a number.") from None
        current = self._limits.request_s
        if not timeout_s > 0 or (current is not None and timeout_s >= current):
            return self._limits
        return replace(self._limits, request_s=timeout_s)

    # ---- from a request to bytes

    async def _plain(self, handle: RequestHandle, receive: Receive, send: Send) -> None:
        assert isinstance(handle, CompletionHandle)
        async with handle, DisconnectWatch(receive, handle.client_gone):
            body = await handle.result()
            headers = self._reply_headers(handle)
            headers.append((b"content-type", b"application/json"))
            headers.append((b"content-length", str(len(body)).encode()))
            await send_bytes(send, 200, headers, body)

    async def _stream(self, handle: RequestHandle, receive: Receive, send: Send) -> None:
        def head() -> list[Header]:
            return [*STREAM_HEADERS, *self._reply_headers(handle)]

        writer = StreamWriter(send, self._dialect, head)
        try:
            async with handle, DisconnectWatch(receive, handle.client_gone):
                await writer.run(handle)
        except LLMRuntimeError:
            if not writer.started:
                raise
        except Exception:
            if not writer.started:
                raise
            log.exception("request.crashed", request_id=handle.request.id)
        if handle.stalled:
            _abort_connection(send)

    def _reply_headers(self, handle: RequestHandle) -> list[Header]:
        headers: list[Header] = [(b"x-request-id", handle.request.id.encode())]
        timing = server_timing(handle.timeline, replica=handle.replica, decode=not handle.request.stream)
        if timing:
            headers.append((b"server-timing", timing.encode("ascii")))
        return headers


def _abort_connection(send: Send) -> None:
    """Drops what a client refuses to read. Closing would flush first, which is what never ends;
    ASGI has no word for it, so this reaches for the transport of uvicorn's cycle where there is one.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
