"""The inference endpoints as raw ASGI: from headers read to the last byte written.

They stand in front of FastAPI's middleware stack (`api/app.py`), because that stack costs more than
everything here; so this module is also their error boundary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import structlog

from llm_runtime.admission.controller import Permit
from llm_runtime.api.limits import RequestLimits, declared_slo, max_attempts_of, num_retries
from llm_runtime.api.services import Services
from llm_runtime.api.translation import Translation
from llm_runtime.core.errors import BodyTimeout, BodyTooLarge, ClientGone, LLMRuntimeError, RateLimited
from llm_runtime.core.request import DEFAULT_PRIORITY, EndpointKind, RuntimeRequest
from llm_runtime.runtime.handles import CompletionHandle
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.telemetry.server_timing import server_timing
from llm_runtime.web.asgi import (
    Headers,
    Receive,
    Scope,
    Send,
    abort_connection,
    headers_of,
    request_id_of,
    send_bytes,
    send_error,
)
from llm_runtime.web.body import check_media_type, read_body, refuse_unread
from llm_runtime.web.cycle import Cycle, cycle_of
from llm_runtime.web.disconnect import watch
from llm_runtime.web.errors import INTERNAL_ERROR, Header, row_of
from llm_runtime.web.rate_limits import rate_limit_headers
from llm_runtime.web.stream import STREAM_HEADERS, StreamWriter
from llm_runtime.wire.dialects import dialect_for
from llm_runtime.wire.facades import facade_for
from llm_runtime.wire.json import JsonLimits, parse_body
from llm_runtime.wire.requests import ParsedRequest

log = structlog.get_logger(__name__)

BIG_BODY_BYTES = 256 * 1024
FINGERPRINT_BYTES = 16 * 1024


class _Arrival(NamedTuple):
    """A request of which only the headers are known. at: monotonic."""

    at: float
    headers: Headers
    request_id: str
    tenant: str


class _Accepted(NamedTuple):
    """translation: where a model's engine knows only chats, and the client asked for something else."""

    request: RuntimeRequest
    translation: Translation | None


class _Client(NamedTuple):
    """Who waits for the answer: its two ends, where it is at a connection of ours, what its headers say of
    its limits, its own API."""

    receive: Receive
    send: Send
    cycle: Cycle | None
    limited: list[Header]
    translation: Translation | None


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
        self._facade = facade_for(kind)
        self._big_bodies = big_bodies
        server = services.server
        self._json_limits = JsonLimits(max_messages=server.max_messages, max_tools=server.max_tools)
        self._limits = RequestLimits(services.runtime.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_at = self._services.runtime.clock.now()
        cycle = cycle_of(scope, send)
        headers = headers_of(scope)
        request_id = request_id_of(headers)
        request: RuntimeRequest | None = None
        handle: RequestHandle | None = None
        tenant: str | None = None
        permit: Permit | None = None
        try:
            tenant = self._services.keys.identify(
                headers.get(b"authorization"),
                x_api_key=headers.get(b"x-api-key"),
                x_tenant_id=headers.get(b"x-tenant-id"),
            )
            body = await self._body(headers, receive, cycle)
            request, translation = await self._accept(_Arrival(arrived_at, headers, request_id, tenant), body)
            request_id = request.id
            permit = await self._services.runtime.admit(request)
            if permit.standing is not None:  # which may have taken a while
                request = self._renamed(request)
                request_id = request.id
            handle = self._services.runtime.submit(request, permit)
            limited = rate_limit_headers(permit.standing)
            client = _Client(receive, send, cycle, limited, translation)
            if request.stream:
                told = headers.get(b"x-server-timing") == b"stream"
                await self._stream(handle, client, told=told)
            else:
                await self._plain(handle, client)
            if handle.cut_off:
                await abort_connection(scope, send)
        except ClientGone:
            self._refused(request, ClientGone.reason, 499)
        except LLMRuntimeError as error:
            self._refused(request, error.reason, row_of(error).status)
            extra = await self._told(error, tenant, permit, handle)
            if request is None and isinstance(error, BodyTooLarge | BodyTimeout):
                await refuse_unread(
                    send, receive, error, request_id, extra=extra, write=self._dialect.error_body
                )
            else:
                await send_error(send, error, request_id, extra=extra, write=self._dialect.error_body)
        except Exception:
            log.exception("request.crashed", request_id=request_id)
            self._refused(request, INTERNAL_ERROR.reason, 500)
            extra = await self._told(INTERNAL_ERROR, tenant, permit, handle)
            await send_error(send, INTERNAL_ERROR, request_id, extra=extra, write=self._dialect.error_body)

    async def _told(
        self, error: LLMRuntimeError, tenant: str | None, permit: Permit | None, handle: RequestHandle | None
    ) -> list[Header]:
        """What an error says beside itself: where the time went, and how the tenant stands."""
        headers: list[Header] = []
        if handle is not None and permit is not None:
            receipt = _receipt(handle)
            if receipt:
                headers.append((b"server-timing", receipt))
            standing = permit.standing
        else:
            # Nothing was taken, or it was given back: ask anew.
            standing = error.standing if isinstance(error, RateLimited) else None
            if standing is None and tenant is not None:
                standing = await self._services.runtime.standing(tenant)
        return headers + rate_limit_headers(standing)

    def _refused(self, request: RuntimeRequest | None, reason: str, status: int) -> None:
        """What became a request is counted by its own events; the rest is counted here."""
        if request is None:
            self._services.events.refused(self._kind.value, status, reason)

    # ---- from bytes to a request

    async def _body(self, headers: Headers, receive: Receive, cycle: Cycle | None) -> bytes:
        check_media_type(headers)
        services = self._services
        timeout_s = services.runtime.limits.body_timeout_s
        return await read_body(headers, receive, services.server.max_body_bytes, timeout_s, cycle)

    async def _accept(self, arrival: _Arrival, body: bytes) -> _Accepted:
        if len(body) <= BIG_BODY_BYTES:
            parsed, translation = self._parse(body)
        else:
            # One at a time and off the loop: a few huge prompts must not stop everybody's tokens.
            async with self._big_bodies:
                parsed, translation = await asyncio.to_thread(self._parse, body)
        return _Accepted(
            self._request(arrival, body, parsed, translated=translation is not None), translation
        )

    def _request(
        self, arrival: _Arrival, body: bytes, parsed: ParsedRequest, *, translated: bool
    ) -> RuntimeRequest:
        services = self._services
        runtime = services.runtime
        kind = EndpointKind.CHAT if translated else self._kind
        pool = runtime.pool_for(parsed.model, kind)
        prompt_tokens = parsed.prompt_tokens_exact
        if prompt_tokens is None:
            prompt_tokens = services.estimator.estimate(parsed.model, parsed.prompt_bytes)
        max_tokens = parsed.max_tokens if parsed.max_tokens is not None else services.default_max_tokens
        context_tokens = pool.info.context_tokens
        if context_tokens is not None:
            max_tokens = min(max_tokens, context_tokens)
        tenant = services.tenants.of(arrival.tenant)
        priority = parsed.priority if parsed.priority is not None else DEFAULT_PRIORITY
        headers = arrival.headers
        slo = declared_slo(tenant.slo, headers.get(b"x-slo-ttft-ms"), headers.get(b"x-slo-total-ms"))
        read_timeout = headers.get(b"x-stainless-read-timeout")
        request = RuntimeRequest(
            id=runtime.unique_id(arrival.request_id),
            model=parsed.model,
            kind=kind,
            body=parsed.body,
            arrived_at=arrival.at,
            created=int(runtime.clock.wall()),
            tenant=arrival.tenant,
            priority=tenant.priority(priority),
            limits=self._limits.of(read_timeout, slo, stream=parsed.stream),
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            num_slots=parsed.num_slots,
            num_prompt_tokens=prompt_tokens,
            num_prompt_bytes=parsed.prompt_bytes,
            max_tokens=max_tokens,
            cap_field=parsed.cap_field,
            via=self._kind if translated else None,
            max_attempts=max_attempts_of(headers.get(b"x-max-attempts")),
            fingerprint=hash((len(body), body[-FINGERPRINT_BYTES:])),
            num_retries=num_retries(headers.get(b"x-stainless-retry-count")),
        )
        runtime.check(request)
        return request

    def _renamed(self, request: RuntimeRequest) -> RuntimeRequest:
        """The same under a name that is still nobody else's."""
        unique = self._services.runtime.unique_id(request.id)
        return request if unique == request.id else replace(request, id=unique)

    def _parse(self, body: bytes) -> tuple[ParsedRequest, Translation | None]:
        parsed = self._parse_request(parse_body(body, self._json_limits))
        index = self._services.runtime.index
        if self._facade is None or index.serves(parsed.model, self._kind):
            return parsed, None
        if not index.serves(parsed.model, EndpointKind.CHAT):
            return parsed, None  # and then there is no such model, or it does neither
        translation = Translation.of(self._facade, parsed)
        return translation.chat, translation

    # ---- from a request to bytes

    async def _plain(self, handle: RequestHandle, client: _Client) -> None:
        assert isinstance(handle, CompletionHandle)
        async with watch(client.cycle, client.receive, handle.client_gone), handle:
            body = await handle.result()
            if client.translation is not None:
                body = client.translation.reply(body)
            headers = self._reply_headers(handle, client)
            headers.append((b"content-type", b"application/json"))
            headers.append((b"content-length", b"%d" % len(body)))
            cycle = client.cycle
            if cycle is not None and not cycle.is_wrapped(client.send):
                await cycle.drained()
                cycle.respond(200, headers, body)
            else:
                await send_bytes(client.send, 200, headers, body)

    async def _stream(self, handle: RequestHandle, client: _Client, *, told: bool) -> None:
        """told: the client wants to be told at the end where the time went."""
        receipt = partial(_receipt, handle) if told else None
        head = partial(self._stream_headers, handle, client)
        writer = StreamWriter(client.send, self._dialect, head, receipt, client.cycle)
        translation = client.translation
        try:
            async with watch(client.cycle, client.receive, handle.client_gone), handle:
                await writer.run(handle if translation is None else translation.stream(handle))
        except LLMRuntimeError:
            if not writer.started:
                raise
        except Exception:
            if not writer.started:
                raise
            log.exception("request.crashed", request_id=handle.request.id)

    def _stream_headers(self, handle: RequestHandle, client: _Client) -> list[Header]:
        return [*STREAM_HEADERS, *self._reply_headers(handle, client)]

    def _reply_headers(self, handle: RequestHandle, client: _Client) -> list[Header]:
        headers: list[Header] = [(b"x-request-id", handle.request.id.encode()), *client.limited]
        timing = _receipt(handle, decode=not handle.request.stream)
        if timing:
            headers.append((b"server-timing", timing))
        return headers


def _receipt(handle: RequestHandle, *, decode: bool = True) -> bytes:
    """Where the request's time went so far, as `Server-Timing` puts it."""
    return server_timing(handle.timeline, replica=handle.replica, decode=decode).encode("ascii")
