"""The kinds of load, one function each: what is sent when, around one measured window."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from time import monotonic as now

from benchmarks.overhead.calls import Call, PlainCall, StalledCall, StreamCall, Tally
from benchmarks.overhead.connections import Connection, Pool
from benchmarks.overhead.phase import Phase, Result
from benchmarks.overhead.window import Window

Ended = Callable[[Connection | None], None]

DRAIN_S = 30.0
"""How long what is under way at the end of a window may take until it counts as failed."""
SETTLE_S = 0.3
STALLED_BUFFER_BYTES = 16 * 1024
PROMPT = " ".join(["Explain what a gateway between clients and engines has to do, and what it costs."] * 5)


class Bodies:
    """Requests as bytes. Every prompt differs from its first word on, so that no cache can help."""

    def __init__(self, phase: Phase) -> None:
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: {phase.host}:{phase.port}",
            "accept: */*",
            "user-agent: gateway-overhead",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in phase.headers.items()),
        ]
        self._head = "\r\n".join(lines).encode()
        self._salt = phase.salt
        self._numbers = count()
        is_plain = phase.kind in ("plain", "paced")
        stream = '"seed": 1' if is_plain else f'"stream": true, "max_tokens": {phase.num_tokens}'
        self._before = f'{{"model": "{phase.model}", {stream}, "messages": [{{"role": "user", "content": "'
        self._after = f'{PROMPT}"}}]}}'

    def next(self) -> bytes:
        body = f"{self._before}{self._salt}{next(self._numbers)} {self._after}".encode()
        return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)


class Running:
    """The calls of a phase: how many are under way, and whether more may follow."""

    def __init__(self) -> None:
        self.stopping = False
        self._num = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def began(self) -> None:
        self._num += 1
        self._idle.clear()

    def ended(self) -> None:
        self._num -= 1
        if not self._num:
            self._idle.set()

    async def drain(self, tally: Tally) -> None:
        """Until all have ended; those that do not are failures."""
        self.stopping = True
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
        except TimeoutError:
            self.give_up(tally, "no end")

    def give_up(self, tally: Tally, reason: str) -> None:
        """Whatever is still under way has failed."""
        self.stopping = True
        for _ in range(self._num):
            tally.failed(reason)


async def run(phase: Phase) -> Result:
    """Raises OSError when nobody listens there."""
    tally = Tally()
    pool = Pool(phase.host, phase.port)
    window = Window(phase, tally)
    begin = {
        "streams": _streams, "plain": _plain, "paced": _paced, "poisson": _poisson, "stalled": _stalled,
    }[phase.kind]  # fmt: skip
    running = Running()
    try:
        begun_at = await begin(phase, pool, tally, running)
        await _sleep_until(begun_at + phase.warmup_s)
        window.open()
        await _sleep_until(begun_at + phase.warmup_s + phase.window_s)
        window.close()
        if phase.kind == "stalled":
            running.give_up(tally, "never began")
        else:
            await running.drain(tally)
        return window.result(pool.num_connects)
    finally:
        running.stopping = True
        await pool.aclose()


async def _streams(phase: Phase, pool: Pool, tally: Tally, running: Running) -> float:
    """Streams in even steps over the length of one; the warm-up is counted from the last one's start."""
    await pool.fill(phase.concurrency)
    bodies = Bodies(phase)
    loop = asyncio.get_running_loop()
    begun_at = now() + SETTLE_S / 2
    length_s = phase.num_tokens * phase.gap_s

    def start(connection: Connection | None = None) -> None:
        running.began()
        call = StreamCall(bodies.next(), tally, ended, phase.num_tokens)
        _send(pool, connection, call)

    def ended(connection: Connection | None) -> None:
        running.ended()
        if not running.stopping:
            start(connection)

    for number in range(phase.concurrency):
        loop.call_at(begun_at + length_s * number / phase.concurrency, start)
    return begun_at + length_s


async def _plain(phase: Phase, pool: Pool, tally: Tally, running: Running) -> float:
    await pool.fill(phase.concurrency)
    bodies = Bodies(phase)

    def start(connection: Connection | None = None) -> None:
        running.began()
        _send(pool, connection, PlainCall(bodies.next(), tally, ended))

    def ended(connection: Connection | None) -> None:
        running.ended()
        if not running.stopping:
            start(connection)

    for _ in range(phase.concurrency):
        start()
    return now()


async def _poisson(phase: Phase, pool: Pool, tally: Tally, running: Running) -> float:
    await pool.fill(2 + int(2 * phase.rate_per_s * phase.num_tokens * phase.gap_s))

    def make(payload: bytes, ended: Ended) -> Call:
        return StreamCall(payload, tally, ended, phase.num_tokens)

    return _arrive(phase, pool, running, make)


async def _paced(phase: Phase, pool: Pool, tally: Tally, running: Running) -> float:
    await pool.fill(phase.concurrency)
    return _arrive(phase, pool, running, lambda payload, ended: PlainCall(payload, tally, ended))


def _arrive(phase: Phase, pool: Pool, running: Running, make: Callable[[bytes, Ended], Call]) -> float:
    """On absolute random instants; the same seed gives every participant of a round the same ones."""
    bodies = Bodies(phase)
    loop = asyncio.get_running_loop()
    source = random.Random(phase.seed)
    begun_at = now() + SETTLE_S
    end_at = begun_at + phase.warmup_s + phase.window_s

    def ended(connection: Connection | None) -> None:
        running.ended()
        if connection is not None:
            pool.release(connection)

    def start(due_at: float) -> None:
        running.began()
        call = make(bodies.next(), ended)
        call.due_at = due_at
        pool.send(call)
        arm(due_at + source.expovariate(phase.rate_per_s))

    def arm(due_at: float) -> None:
        if due_at < end_at:
            loop.call_at(due_at, start, due_at)

    arm(begun_at + source.expovariate(phase.rate_per_s))
    return begun_at


async def _stalled(phase: Phase, pool: Pool, tally: Tally, running: Running) -> float:
    """Read to the first token. Those that never begin are failures, and so are those that end."""
    bodies = Bodies(phase)

    def start(connection: Connection) -> None:
        def stop() -> None:
            connection.pause_reading()
            running.ended()

        running.began()
        connection.send(StalledCall(bodies.next(), tally, ignore, stop))

    def ignore(_: Connection | None) -> None: ...

    for _ in range(phase.concurrency):
        start(await pool.connect(receive_buffer_bytes=STALLED_BUFFER_BYTES))
    return now()


def _send(pool: Pool, connection: Connection | None, call: Call) -> None:
    if connection is not None and connection.usable:
        connection.send(call)
    else:
        pool.send(call)


async def _sleep_until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - now()))
