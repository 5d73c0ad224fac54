"""One connection to Redis, used by one task: scripts are run in the order of asking, many to a round trip.

Order is what makes the limits exact for a client that asks again as soon as it has its answer: what its last
request gave back is there before the next one asks. The rest of the package knows no Redis; this module
imports it, and so is imported only where a URL is configured.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

MAX_BATCH = 256
MAX_TOLD = 20_000
"""Commands that are kept for Redis, most of them while it is gone; what comes beyond that is dropped."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
PROBE_LASTS_S = 60


class LinkLost(Exception):
    """Redis did not answer. What was asked may have been done all the same."""


class NotAsked(LinkLost):
    """Redis was known to be gone, so nothing was asked of it."""


LOST = object()
"""In place of an answer. Exceptions in futures complain when the one who waited was cancelled."""


@dataclass(frozen=True, slots=True)
class Script:
    """text: Lua. sha: by which Redis knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, name: str) -> Script:
        """One of this package's scripts, behind what all of them begin with."""
        folder = resources.files("llm_runtime.admission") / "lua"
        text = "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True, eq=False)
class Command:
    """answer: None where nobody waits for it; such a command is sent again until it was answered."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int | float]
    answer: asyncio.Future[Any] | None = None


class RedisLink:
    """Owned by `RedisLimits`; used on the loop's thread.

    on_beat: asked for commands that keep things alive, whenever a connection stands and then every
    `beat_s`. on_change: told when Redis is back (None) or gone (why). probe_key: written to see whether
    Redis takes writes.
    """

    def __init__(
        self,
        url: str,
        scripts: Iterable[Script],
        *,
        timeout_s: float,
        beat_s: float,
        on_beat: Callable[[], list[Command]],
        on_change: Callable[[str | None], None],
        probe_key: str,
    ) -> None:
        self.available = False
        self._probe_key = probe_key
        self._scripts = tuple(scripts)
        self._timeout_s = timeout_s
        self._beat_s = beat_s
        self._on_beat = on_beat
        self._on_change = on_change
        self._told_gone: bool | None = None
        self._waiting: deque[Command] = deque()
        self._unsure: list[Command] = []
        self._wake = asyncio.Event()
        self._redis = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    # ---- for requests

    async def ask(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | float]) -> Any:
        """Runs the script. Raises LinkLost: at once while Redis is gone, else within two time limits."""
        if not self.available or len(self._waiting) >= MAX_TOLD:
            raise NotAsked
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(Command(script, keys, arguments, answer))
        reply = await answer
        if reply is LOST:
            raise LinkLost
        return reply

    def tell(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | float]) -> None:
        """Has the script run once Redis can be reached, perhaps twice; nobody waits for it."""
        self._put(Command(script, keys, arguments))

    def _put(self, command: Command) -> None:
        if len(self._waiting) < MAX_TOLD:
            self._waiting.append(command)
            self._wake.set()

    # ---- the task

    async def run(self) -> None:
        """Until cancelled; then what is still to be told is told, if that can be done at once."""
        pause_s = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_at = loop.time()
                try:
                    await self._open()
                    await self._serve()
                except (RedisError, OSError, TimeoutError) as error:
                    self._lose(f"{type(error).__name__}: {error}")
                await self._close()
                if loop.time() - began_at > LONGEST_PAUSE_S:
                    pause_s = 0.0
                await asyncio.sleep(pause_s)
                pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        finally:
            was_available = self.available
            self._lose(None)
            await self._close()
            if was_available:
                with suppress(RedisError, OSError, TimeoutError):
                    await self._send_all()
                await self._close()

    async def _open(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._redis.set(self._probe_key, "1", ex=PROBE_LASTS_S)
            await self._load()
        await self._send(self._on_beat())
        self.available = True
        if self._told_gone is not False:
            self._told_gone = False
            self._on_change(None)

    async def _load(self) -> None:
        for script in self._scripts:
            await self._redis.script_load(script.text)

    async def _serve(self) -> None:
        beat_at = asyncio.get_running_loop().time() + self._beat_s
        while True:
            await self._send_all()
            try:
                async with asyncio.timeout_at(beat_at):
                    await self._wake.wait()
            except TimeoutError:
                await self._send(self._on_beat())
                beat_at = asyncio.get_running_loop().time() + self._beat_s

    async def _send_all(self) -> None:
        while self._waiting or self._unsure:
            batch, self._unsure = self._unsure, []
            while self._waiting and len(batch) < MAX_BATCH:
                batch.append(self._waiting.popleft())
            await self._send(batch)
        self._wake.clear()

    async def _send(self, batch: list[Command]) -> None:
        """Raises what went wrong; then those who wait were told, and the rest is kept for the next try."""
        self._unsure = batch
        async with asyncio.timeout(self._timeout_s):
            if not batch:
                await self._redis.ping()
                return
            replies = await self._execute(batch)
            unknown = [command for command, reply in replies if isinstance(reply, NoScriptError)]
            if unknown:  # Redis was started anew, or its scripts were flushed: nothing was run of these
                await self._load()
                again = dict(await self._execute(unknown))
                replies = [(command, again.get(command, reply)) for command, reply in replies]
        failed = next((reply for _, reply in replies if isinstance(reply, Exception)), None)
        self._unsure = []
        for command, reply in replies:
            if command.answer is None or command.answer.done():
                continue
            command.answer.set_result(LOST if isinstance(reply, Exception) else reply)
        if failed is not None:
            raise failed

    async def _execute(self, batch: Sequence[Command]) -> list[tuple[Command, Any]]:
        pipe = self._redis.pipeline(transaction=False)
        for command in batch:
            pipe.evalsha(command.script.sha, len(command.keys), *command.keys, *command.arguments)
        return list(zip(batch, await pipe.execute(raise_on_error=False), strict=True))

    async def _close(self) -> None:
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._redis.aclose()

    def _lose(self, why: str | None) -> None:
        """why: in words; None: on purpose."""
        self.available = False
        told: list[Command] = []
        for command in (*self._unsure, *self._waiting):
            if command.answer is None:
                told.append(command)
            elif not command.answer.done():
                command.answer.set_result(LOST)
        self._unsure, self._waiting = [], deque(told[-MAX_TOLD:])
        if why is not None and self._told_gone is not True:
            self._told_gone = True
            self._on_change(why)
