"""The upstream of every participant: an OpenAI-compatible server that computes nothing.

FROZEN, with `stub_events`. Figures are compared across commits, and these files are half of what they
were measured with: repair nothing here, add nothing here; a different stub is a different benchmark
and needs a new name.

It answers chat completions in the shape of vLLM's: each token one event of about 240 bytes in a
chunk of its own. The text of a token is the instant at which it was written (monotonic,
microseconds, 15 digits), so that a client on the same machine knows how long it was on its way.

Streams are paced on instants counted from the request's arrival: token k (from 1) is due k gaps
after it. Two paces: `own`, each stream on its own instants, so that no two tokens are due together
except by chance; `steps`, all streams on one grid, written in one pass, as an engine with
continuous batching does. A gap of 0 writes as fast as the reader reads. Plain replies come at once.

`POST /stub` with {"gap_s": ..., "pace": ...} sets the pace of later requests, `GET /stub` counts.
"""

from __future__ import annotations

import argparse
import asyncio
import select
import selectors
import signal
import socket
import sys
import time
from typing import Any, cast

import httptools
import orjson

from benchmarks.overhead.stub_events import MODELS, STREAM_HEAD, Events, plain

CHAT = b"/v1/chat/completions"
PAGES = {b"/v1/models": MODELS, b"/health": b"{}", b"/version": b'{"version":"stub"}'}
MAX_SELECTABLE = 1024
EVENTS_PER_PASS = 64
SEND_BUFFER_BYTES = 128 * 1024


class ExactSelector(selectors.EpollSelector):
    """epoll waits whole milliseconds; select waits microseconds, also for an epoll descriptor."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0 and self.fileno() < MAX_SELECTABLE:
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)


class Stub:
    """The pace and the counters, and the timer of the pace `steps`."""

    def __init__(self) -> None:
        self.gap_s = 0.02
        self.pace = "own"
        self.num_requests = 0
        self.num_tokens = 0
        self.streams: set[Stream] = set()
        self._loop = asyncio.get_running_loop()
        self._stepping: set[Stream] = set()
        self._step_number = 0
        self._timer: asyncio.TimerHandle | None = None

    def set_pace(self, gap_s: float, pace: str) -> None:
        self.gap_s, self.pace = gap_s, pace
        self._step_number = 0

    def step_with_others(self, stream: Stream) -> None:
        self._stepping.add(stream)
        if self._timer is None:
            self._arm()

    def leave(self, stream: Stream) -> None:
        self.streams.discard(stream)
        self._stepping.discard(stream)

    def _arm(self) -> None:
        # A timer may fire a little before its instant: the same step must not come twice.
        self._step_number = max(int(self._loop.time() / self.gap_s), self._step_number) + 1
        self._timer = self._loop.call_at(self._step_number * self.gap_s, self._step)

    def _step(self) -> None:
        self._timer = None
        for stream in tuple(self._stepping):
            stream.write_token()
        if self._stepping:
            self._arm()


class Stream:
    """One answer under way, owned by its connection."""

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        stub = connection.stub
        self._connection = connection
        self._stub = stub
        self._loop = asyncio.get_running_loop()
        self._gap_s = stub.gap_s
        self._begun_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._events = Events(stub.num_requests, request)
        self._num_tokens = self._events.num_tokens
        self._num_written = 0
        stub.streams.add(self)
        if self._gap_s == 0:
            self._timer = self._loop.call_later(0, self.flood)
        elif stub.pace == "steps":
            stub.step_with_others(self)
        else:
            self._timer = self._loop.call_at(self._begun_at + self._gap_s, self._due)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stub.leave(self)

    def write_token(self) -> None:
        """The next one; the first brings the head and the role with it, the last the end."""
        self._num_written += 1
        self._stub.num_tokens += 1
        if self._num_written == 1:
            self._connection.write(STREAM_HEAD + self._events.role() + self._events.token())
        elif self._num_written < self._num_tokens:
            self._connection.write(self._events.token())
        if self._num_written >= self._num_tokens:
            self._connection.write(self._events.end())
            self._connection.stream_ended()

    def flood(self) -> None:
        """As many as the reader takes, some at a time so that others have their turn."""
        self._timer = None
        if self._connection.is_paused:
            return
        # The first and the last are written as at any other pace.
        count = min(EVENTS_PER_PASS, self._num_tokens - self._num_written - 1)
        if self._num_written and count > 0:
            self._num_written += count
            self._stub.num_tokens += count
            self._connection.write(self._events.token() * count)
        else:
            self.write_token()
        if self._num_written < self._num_tokens:
            self._timer = self._loop.call_later(0, self.flood)

    def resume(self) -> None:
        if self._gap_s == 0 and self._timer is None:
            self._timer = self._loop.call_later(0, self.flood)

    def _due(self) -> None:
        self.write_token()
        if self._num_written < self._num_tokens:
            due_at = self._begun_at + (self._num_written + 1) * self._gap_s
            self._timer = self._loop.call_at(due_at, self._due)


class Connection(asyncio.Protocol):
    """One client connection; one request at a time."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.is_paused = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.stream_ended()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._stream is not None:
            self._stream.resume()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path == CHAT:
            self._answer()
        elif path == b"/stub":
            self._control()
        else:
            page = PAGES.get(path)
            self._reply(b"404 Not Found" if page is None else b"200 OK", page or b"{}")

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def stream_ended(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _answer(self) -> None:
        request = orjson.loads(b"".join(self._body))
        self.stub.num_requests += 1
        if request.get("stream"):
            self._stream = Stream(self, request)
            return
        self._reply(b"200 OK", plain(self.stub.num_requests, request))

    def _control(self) -> None:
        stub, wanted = self.stub, orjson.loads(b"".join(self._body) or b"{}")
        stub.set_pace(float(wanted.get("gap_s", stub.gap_s)), wanted.get("pace", stub.pace))
        counts = {"num_requests": stub.num_requests, "num_tokens": stub.num_tokens,
                  "num_streams": len(stub.streams), "cpu_s": time.process_time()}  # fmt: skip
        self._reply(b"200 OK", orjson.dumps(counts))

    def _reply(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: "
        self.write(head + b"%d\r\n\r\n" % len(body) + body)


async def serve(port: int) -> None:
    """Prints the address once it listens; until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    stub = Stub()
    listener = socket.socket()
    # A stream that nobody reads must not fill the kernel's memory instead of the gateway's.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await loop.create_server(lambda: Connection(stub), sock=listener, backlog=4096)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="An upstream that computes nothing.")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ExactSelector())) as runner:
        runner.run(serve(options.port))


if __name__ == "__main__":
    main()
