"""A stand-in for a server whose timing is known exactly: `python -m llm_runtime.bench.stub`.

It computes nothing. Every event of an answer has an instant, counted from the arrival of the
request's last byte and kept on an absolute grid, so lateness never adds up. What a request may ask
for, in a `stub` member of its body, is every field of `Script`; the rest is the server's own script.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httptools
import orjson

from llm_runtime.bench import clock
from llm_runtime.bench.stub_script import (
    FAILURE,
    MODEL,
    Composer,
    Script,
    Step,
    num_tokens_of,
    prompt_tokens_of,
    script_for,
    streamed,
)
from llm_runtime.bench.timers import ExactTimers, Timer

MODELS = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DEFAULT = Script()
PATHS = {b"/v1/chat/completions": True, b"/v1/completions": False}


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived; arrived_at: monotonic, of its last byte."""

    arrived_at: float
    path: bytes
    headers: dict[bytes, bytes]
    body: dict[str, Any]


class Stub:
    """Counts, and what every connection needs. on_request is called for every inference request."""

    def __init__(self, script: Script, on_request: Callable[[Seen], None] | None = None) -> None:
        self.timers = ExactTimers()
        self.script = script
        self.on_request = on_request
        self.num_requests = 0
        self.num_running = 0
        self.port = 0
        self.connections: set[_Connection] = set()

    def page(self, path: bytes) -> bytes | None:
        """Body of a GET; None for an unknown path."""
        if path == b"/metrics":
            running = f"vllm:num_requests_running {self.num_running}\nvllm:num_requests_waiting 0\n"
            return (running + f"vllm:kv_cache_usage_perc {min(1.0, self.num_running / 1000)}\n").encode()
        pages = {b"/v1/models": MODELS, b"/health": b"{}", b"/version": b'{"version":"stub"}'}
        return pages.get(path)


class _Connection(asyncio.Protocol):
    """Called by the loop only. One request at a time; steps are sent by chained timers."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._timer: Timer | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._running = False
        self._steps: Iterator[Step] = iter(())
        self._pending: Step | None = None
        self._started_at = 0.0
        self._head = b""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._stub.connections.add(self)

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stub.connections.discard(self)
        self._transport = self._parser = None
        self._rest()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", {}
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        arrived_at = clock.now()
        path = self._url.partition(b"?")[0]
        if path not in PATHS:
            page = self._stub.page(path)
            self._reply(200 if page is not None else 404, page or orjson.dumps({"error": FAILURE}))
            return
        try:
            request = orjson.loads(self._body)
            script = script_for(self._stub.script, request)
        except ValueError as error:
            self._reply(400, orjson.dumps({"error": {**FAILURE, "message": str(error)}}))
            return
        self._stub.num_requests += 1
        if self._stub.on_request is not None:
            self._stub.on_request(Seen(arrived_at, path, dict(self._headers), request))
        self._running = True
        self._stub.num_running += 1
        self._answer(script, request, path, arrived_at)

    # the answer

    def _answer(self, script: Script, request: dict[str, Any], path: bytes, arrived_at: float) -> None:
        num_tokens, prompt_tokens = num_tokens_of(script, request), prompt_tokens_of(request)
        is_chat = PATHS[path]
        if script.status != 200:
            extra = () if script.retry_after is None else (f"retry-after: {script.retry_after}",)
            body = orjson.dumps({"error": FAILURE})
            self._at(arrived_at + script.first_at_s, lambda: self._reply(script.status, body, *extra))
        elif request.get("stream"):
            self._steps = iter(streamed(script, num_tokens, prompt_tokens, is_chat))
            self._started_at = arrived_at
            self._pending = next(self._steps)
            self._head = STREAM_HEAD
            self._play()
        else:
            at_s, body = Composer(script, num_tokens, prompt_tokens, is_chat=is_chat).plain()
            self._at(arrived_at + at_s, lambda: self._reply(200, body))

    def _play(self) -> None:
        """Sends every step that is due, then waits for the next one's instant."""
        while self._pending is not None and self._transport is not None:
            at_s, event = self._pending
            if self._started_at + at_s > clock.now():
                self._timer = self._stub.timers.call_at(self._started_at + at_s, self._play)
                return
            if not event:
                self.close()
                return
            self._write(self._head + b"%x\r\n%b\r\n" % (len(event), event))
            self._head = b""
            self._pending = next(self._steps, None)
        self._write(b"0\r\n\r\n")
        self._rest()

    def _at(self, at: float, action: Callable[[], None]) -> None:
        if at <= clock.now():
            action()
        else:
            self._timer = self._stub.timers.call_at(at, action)

    def _reply(self, status: int, body: bytes, *headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status} X",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *headers,
        ]
        self._write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        self._rest()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            self._running = False
            self._stub.num_running -= 1


@contextlib.asynccontextmanager
async def serve(
    script: Script = DEFAULT, on_request: Callable[[Seen], None] | None = None, port: int = 0
) -> AsyncIterator[Stub]:
    """Serves on loopback until the block is left; `Stub.port` tells where."""
    stub = Stub(script, on_request)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(stub), "127.0.0.1", port, backlog=4096)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
        for connection in tuple(stub.connections):
            connection.close()
        await server.wait_closed()
        stub.timers.close()


async def _main(script: Script, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with serve(script, port=port) as stub:
        sys.stdout.write(f"http://127.0.0.1:{stub.port}\n")
        sys.stdout.flush()
        with clock.quiet_collector():
            await stopped.wait()


def main(arguments: list[str] | None = None) -> None:
    """Prints the address once it listens; ends on SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="llm_runtime.bench.stub", description="A server of known timing.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=orjson.loads, default={}, help="JSON object with fields of Script")
    options = parser.parse_args(arguments)
    clock.allow_many_connections()
    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        runner.run(_main(script_for(DEFAULT, {"stub": options.script}), options.port))


if __name__ == "__main__":
    main()
