"""The connections of one upstream: reuse, expiry, and the one retry that is always safe."""

from __future__ import annotations

import asyncio
from collections import deque

from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.upstream.protocol import Connection, Limits


class Attempt:
    """A connection being made for one exchange. Owned by the pool, which awaits its task."""

    def __init__(self, pool: Pool, exchange: Exchange, *, is_retry: bool) -> None:
        self._exchange = exchange
        self._is_retry = is_retry
        self.task = asyncio.create_task(self._connect(pool), name="upstream-connect")
        self.task.add_done_callback(self._ended)

    def resume(self) -> None: ...

    def abort(self) -> None:
        self.task.cancel()

    async def _connect(self, pool: Pool) -> None:
        exchange = self._exchange
        try:
            async with asyncio.timeout(pool.limits.connect_timeout_s):
                connection = await pool.address.connect(lambda: Connection(pool))
        except TimeoutError as exc:
            self._fail("The engine did not accept the connection in time.", exc)
        except (OSError, UnicodeError) as exc:
            self._fail("The engine does not accept connections.", exc)
        else:
            if exchange.ended:
                connection.abort()
            elif connection.usable:
                connection.send(exchange)
            else:
                self._fail("The engine closed the connection at once.", None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._fail("The connection to the engine is closed.", None)
        elif (unforeseen := task.exception()) is not None:
            self._fail("The engine could not be connected to.", unforeseen)

    def _fail(self, message: str, cause: BaseException | None) -> None:
        # Before a retry the request was sent once: that nobody answers now may be its doing.
        kind = BackendError if self._is_retry else BackendUnavailable
        error = kind(message)
        error.__cause__ = cause
        self._exchange.fail(error, lost=self._is_retry)


class Pool:
    """Owned by one `Upstream`; used from the loop's thread only."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self.address = address
        self.limits = limits
        self.num_connects = 0
        self.num_retries = 0
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._attempts: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._closed = False

    def start(self, exchange: Exchange) -> None:
        """Sends the request on an idle connection at once, or when a new one stands."""
        oldest = asyncio.get_running_loop().time() - self.limits.idle_s
        while self._idle:
            connection = self._idle.pop()  # the youngest, so that the others can expire
            if connection.usable and connection.idle_since > oldest:
                connection.send(exchange)
                return
            connection.abort()
        self._connect(exchange, is_retry=False)

    async def aclose(self) -> None:
        """Ends everything: exchanges under way fail. Returns when all connections are closed."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._attempts:
            task.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        for connection in tuple(self._open):
            connection.close(BackendError("The connection to the engine was closed."))
        if self._open:
            await self._drained.wait()

    def _connect(self, exchange: Exchange, *, is_retry: bool) -> None:
        if self._closed:
            exchange.fail(BackendUnavailable("The connection to the engine is closed."))
            return
        self.num_connects += 1
        attempt = Attempt(self, exchange, is_retry=is_retry)
        exchange.carried_by(attempt)
        self._attempts.add(attempt.task)
        attempt.task.add_done_callback(self._attempts.discard)

    # Called by connections.

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def released(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._expiry is None:
            self._expiry = loop.call_later(self.limits.idle_s, self._expire)

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._closed and not self._open:
            self._drained.set()

    def retry(self, exchange: Exchange) -> bool:
        """After a reused connection died without an answer: most likely the other side closed it as
        idle just when the request went out. Once only, and only while the same engine lives: a
        request that kills an engine must not kill the next."""
        if exchange.same_process is not None and not exchange.same_process():
            return False
        if self._closed:
            return False
        self.num_retries += 1
        self._connect(exchange, is_retry=True)
        return True

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._expiry = None
        oldest = loop.time() - self.limits.idle_s
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().abort()
        if self._idle:
            self._expiry = loop.call_at(self._idle[0].idle_since + self.limits.idle_s, self._expire)
