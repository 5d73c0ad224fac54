"""The inference endpoints as raw ASGI: from headers read to the last byte written.

They stand in front of FastAPI's middleware stack (`api/app.py`), because that stack costs more than
everything here; so this module is also their error boundary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from llm_runtime.admission.auth import ApiKeys, Caller
from llm_runtime.admission.controller import Permit
from llm_runtime.admission.estimate import TokenEstimator
from llm_runtime.admission.tenants import Tenants
from llm_runtime.api.limits import RequestLimits, declared_slo, max_attempts_of, num_retries
from llm_runtime.api.services import Services
from llm_runtime.api.translation import Translation
from llm_runtime.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    LLMRuntimeError,
    RateLimited,
    forget_frames,
)
from llm_runtime.core.events import Events
from llm_runtime.core.request import DEFAULT_PRIORITY, EndpointKind, RuntimeRequest
from llm_runtime.runtime.handles import CompletionHandle
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.runtime.runtime import Runtime
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
from llm_runtime.web.body import body_here, check_media_type, read_body, refuse_unread
from llm_runtime.web.cycle import Cycle, cycle_of
from llm_runtime.web.disconnect import DisconnectWatch
from llm_runtime.web.errors import INTERNAL_ERROR, Header, row_of
from llm_runtime.web.heads import lines_of
from llm_runtime.web.rate_limits import rate_limit_headers
from llm_runtime.web.stream import STREAM_HEADERS, Pullable, StreamWriter
from llm_runtime.wire.dialects import dialect_for
from llm_runtime.wire.facades import facade_for
from llm_runtime.wire.json import JsonLimits, parse_body
from llm_runtime.wire.parsed_request import ParsedRequest

log = structlog.get_logger(__name__)

BIG_BODY_BYTES: Final = 256 * 1024
FINGERPRINT_BYTES: Final = 16 * 1024

_JSON: Final = (b"content-type", b"application/json")
_JSON_LINE: Final = b"content-type: application/json\r\n"
_STREAM_LINES: Final = lines_of(STREAM_HEADERS)


class _Call:
    """A request, from its headers to its reply, and how far it got. cycle: where it came over a connection of
    ours; is_next: and nothing stands before that which would change a head. limited: what the reply says of
    its tenant's limits. owner: the task it is served by, where that is known. translation: where a model's
    engine knows only chats, and the client asked for something else."""

    __slots__ = (
        "arrived_at", "cycle", "handle", "headers", "id", "is_next", "limited", "owner", "permit", "receive",
        "request", "scope", "send", "tenant", "translation",
    )  # fmt: skip

    def __init__(
        self,
        arrived_at: float,
        scope: Scope,
        headers: Headers,
        receive: Receive,
        send: Send,
        cycle: Cycle | None,
        is_next: bool,
        owner: asyncio.Task[None] | None = None,
    ) -> None:
        self.arrived_at: Final = arrived_at
        self.scope: Final = scope
        self.headers: Final = headers
        self.receive: Final = receive
        self.send: Final = send
        self.cycle: Final = cycle
        self.is_next: Final = is_next
        self.owner: Final = owner
        self.id = request_id_of(headers)
        self.tenant: str | None = None
        self.request: RuntimeRequest | None = None
        self.permit: Permit | None = None
        self.handle: RequestHandle | None = None
        self.limited: list[Header] = []
        self.translation: Translation | None = None


class InferenceEndpoint:
    """One (method, path). Called in the request's own task: as ASGI, or by a connection of ours (`serve`)."""

    def __init__(
        self,
        kind: EndpointKind,
        parse: Callable[[dict[str, Any]], ParsedRequest],
        services: Services,
        big_bodies: asyncio.Lock,
    ) -> None:
        self._kind: Final = kind
        self._parse_request: Final = parse
        self._dialect: Final = dialect_for(kind)
        self._facade: Final = facade_for(kind)
        self._big_bodies: Final = big_bodies
        server = services.server
        self._json_limits: Final = JsonLimits(max_messages=server.max_messages, max_tools=server.max_tools)
        self._max_body_bytes: Final[int] = server.max_body_bytes
        self._runtime: Final[Runtime] = services.runtime
        self._keys: Final[ApiKeys] = services.keys
        self._tenants: Final[Tenants] = services.tenants
        self._estimator: Final[TokenEstimator] = services.estimator
        self._events: Final[Events] = services.events
        self._default_max_tokens: Final[int] = services.default_max_tokens
        self._now: Final = services.runtime.clock.now
        self._wall: Final = services.runtime.clock.wall
        self._limits: Final = RequestLimits(services.runtime.limits)
        self._body_timeout_s: Final[float] = services.runtime.limits.body_timeout_s

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        cycle = cycle_of(scope, send)
        is_next = cycle is not None and not cycle.is_wrapped(send)
        return self._serve(_Call(self._now(), scope, headers_of(scope), receive, send, cycle, is_next))

    def serve(self, cycle: Cycle) -> Awaitable[None]:
        call = _Call(
            self._now(), cycle.scope, cycle.headers, cycle.receive, cycle.send, cycle, True, cycle.flow.task
        )
        return self._serve(call)

    async def _serve(self, call: _Call) -> None:
        cycle = call.cycle
        try:
            call.tenant = self._identify(call.headers, cycle)
            check_media_type(call.headers)
            body = body_here(cycle, self._max_body_bytes)
            if body is None:
                body = await read_body(call.headers, call.receive, self._max_body_bytes, self._body_timeout_s)
            if len(body) <= BIG_BODY_BYTES:
                parsed, call.translation = self._parse(body)
            else:
                # One at a time and off the loop: a few huge prompts must not stop everybody's tokens.
                async with self._big_bodies:
                    parsed, call.translation = await asyncio.to_thread(self._parse, body)
            request = self._request(call, body, parsed, translated=call.translation is not None)
            call.request = request
            call.id = request.id
            permit = await self._runtime.admit(request)
            call.permit = permit
            if permit.standing is not None:  # which may have taken a while
                call.request = request = self._renamed(request)
                call.id = request.id
            handle = self._runtime.submit(request, permit)
            call.handle = handle
            handle.owner = call.owner
            if permit.standing is not None:
                call.limited = rate_limit_headers(permit.standing)
            if request.stream:
                await self._stream(handle, call)
            elif cycle is None or not call.is_next:
                await self._plain(handle, call)
            else:
                # What `_plain` does, with no coroutine of its own and no ASGI.
                assert isinstance(handle, CompletionHandle)
                cycle.watch(handle.client_gone)
                with handle:
                    reply = await handle.result()
                    if call.translation is not None:
                        reply = call.translation.reply(reply)
                    lines = _lines(handle, call.limited)
                    if cycle.flow.paused:
                        await cycle.drained()
                    cycle.reply(lines, reply)
            if handle.cut_off:
                await abort_connection(call.scope, call.send)
        except LLMRuntimeError as error:
            await self._answer_error(call, error)
            forget_frames(error)
        except Exception:
            log.exception("request.crashed", request_id=call.id)
            await self._answer_error(call, INTERNAL_ERROR)

    async def _answer_error(self, call: _Call, error: LLMRuntimeError) -> None:
        self._refused(call.request, error.reason, row_of(error).status)
        if isinstance(error, ClientGone):
            return
        extra = await self._told(error, call)
        write = self._dialect.error_body
        if call.request is None and isinstance(error, BodyTooLarge | BodyTimeout):
            await refuse_unread(call.send, call.receive, error, call.id, extra=extra, write=write)
        else:
            await send_error(call.send, error, call.id, extra=extra, write=write)

    async def _told(self, error: LLMRuntimeError, call: _Call) -> list[Header]:
        """What an error says beside itself: where the time went, and how the tenant stands."""
        headers: list[Header] = []
        if call.handle is not None and call.permit is not None:
            receipt = _receipt(call.handle)
            if receipt:
                headers.append((b"server-timing", receipt))
            standing = call.permit.standing
        else:
            # Nothing was taken, or it was given back: ask anew.
            standing = error.standing if isinstance(error, RateLimited) else None
            if standing is None and call.tenant is not None:
                standing = await self._runtime.standing(call.tenant)
        return headers + rate_limit_headers(standing)

    def _refused(self, request: RuntimeRequest | None, reason: str, status: int) -> None:
        """What became a request is counted by its own events; the rest is counted here."""
        if request is None:
            self._events.refused(self._kind.value, status, reason)

    # ---- from bytes to a request

    def _identify(self, headers: Headers, cycle: Cycle | None) -> str:
        """The caller's tenant. Raises Unauthorized."""
        authorization = headers.get(b"authorization")
        if cycle is not None:
            known = cycle.flow.caller
            if isinstance(known, Caller) and known.is_again(authorization):
                return known.tenant
        keys = self._keys
        tenant = keys.identify(
            authorization, x_api_key=headers.get(b"x-api-key"), x_tenant_id=headers.get(b"x-tenant-id")
        )
        if cycle is not None:
            cycle.flow.caller = keys.caller(authorization, tenant)
        return tenant

    def _request(
        self, call: _Call, body: bytes, parsed: ParsedRequest, *, translated: bool
    ) -> RuntimeRequest:
        assert call.tenant is not None
        headers = call.headers
        runtime = self._runtime
        kind = EndpointKind.CHAT if translated else self._kind
        pool = runtime.pool_for(parsed.model, kind)
        prompt_tokens = parsed.prompt_tokens_exact
        if prompt_tokens is None:
            prompt_tokens = self._estimator.estimate(parsed.model, parsed.prompt_bytes)
        max_tokens = parsed.max_tokens if parsed.max_tokens is not None else self._default_max_tokens
        context_tokens = pool.info.context_tokens
        if context_tokens is not None:
            max_tokens = min(max_tokens, context_tokens)
        tenant = self._tenants.of(call.tenant)
        priority = parsed.priority if parsed.priority is not None else DEFAULT_PRIORITY
        slo = declared_slo(tenant.slo, headers.get(b"x-slo-ttft-ms"), headers.get(b"x-slo-total-ms"))
        read_timeout = headers.get(b"x-stainless-read-timeout")
        request = RuntimeRequest(
            id=runtime.unique_id(call.id),
            model=parsed.model,
            kind=kind,
            body=parsed.body,
            arrived_at=call.arrived_at,
            created=int(self._wall()),
            tenant=call.tenant,
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
        unique = self._runtime.unique_id(request.id)
        return request if unique == request.id else replace(request, id=unique)

    def _parse(self, body: bytes) -> tuple[ParsedRequest, Translation | None]:
        parsed = self._parse_request(parse_body(body, self._json_limits))
        index = self._runtime.index
        if self._facade is None or index.serves(parsed.model, self._kind):
            return parsed, None
        if not index.serves(parsed.model, EndpointKind.CHAT):
            return parsed, None  # and then there is no such model, or it does neither
        translation = Translation.of(self._facade, parsed)
        return translation.chat, translation

    # ---- from a request to bytes

    async def _plain(self, handle: RequestHandle, call: _Call) -> None:
        if call.cycle is not None:
            call.cycle.watch(handle.client_gone)
            with handle:
                await self._send_plain(handle, call)
        else:
            async with DisconnectWatch(call.receive, handle.client_gone):
                with handle:
                    await self._send_plain(handle, call)

    async def _send_plain(self, handle: RequestHandle, call: _Call) -> None:
        assert isinstance(handle, CompletionHandle)
        body = await handle.result()
        if call.translation is not None:
            body = call.translation.reply(body)
        headers = [*_pairs(handle, call.limited), (b"content-length", b"%d" % len(body))]
        await send_bytes(call.send, 200, headers, body)

    async def _stream(self, handle: RequestHandle, call: _Call) -> None:
        # Some clients want to be told at the end where the time went.
        told = call.headers.get(b"x-server-timing") == b"stream"
        receipt = partial(_receipt, handle) if told else None
        head = partial(_pairs, handle, call.limited)
        lines = partial(_lines, handle, call.limited) if call.is_next else None
        writer = StreamWriter(call.send, self._dialect, head, receipt, call.cycle, lines)
        try:
            if call.cycle is not None:
                call.cycle.watch(handle.client_gone)
                with handle:
                    await writer.run(_source(handle, call.translation))
            else:
                async with DisconnectWatch(call.receive, handle.client_gone):
                    with handle:
                        await writer.run(_source(handle, call.translation))
        except LLMRuntimeError as error:
            if not writer.started:
                raise
            forget_frames(error)
        except Exception:
            if not writer.started:
                raise
            log.exception("request.crashed", request_id=handle.request.id)


def _receipt(handle: RequestHandle, *, decode: bool = True) -> bytes:
    """Where the request's time went so far, as `Server-Timing` puts it."""
    return server_timing(handle.timeline, replica=handle.replica, decode=decode).encode("ascii")


def _source(handle: RequestHandle, translation: Translation | None) -> Pullable:
    return handle if translation is None else translation.stream(handle)


def _pairs(handle: RequestHandle, limited: list[Header]) -> list[Header]:
    """A reply's headers, for ASGI; a plain one's without its length."""
    stream = handle.request.stream
    headers: list[Header] = [(b"x-request-id", handle.request.id.encode()), *limited]
    timing = _receipt(handle, decode=not stream)
    if timing:
        headers.append((b"server-timing", timing))
    return [*STREAM_HEADERS, *headers] if stream else [*headers, _JSON]


def _lines(handle: RequestHandle, limited: list[Header]) -> bytes:
    """The same as lines, for a connection of ours. Safe as they are: the id is of safe characters, so is the
    receipt, the rest is numbers."""
    request = handle.request
    stream = request.stream
    before, after = (_STREAM_LINES, b"") if stream else (b"", _JSON_LINE)
    timing = _receipt(handle, decode=not stream)
    if timing:
        after = b"server-timing: %b\r\n%b" % (timing, after)
    if limited:
        after = lines_of(limited) + after
    return b"%bx-request-id: %b\r\n%b" % (before, request.id.encode(), after)
