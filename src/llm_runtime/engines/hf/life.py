"""One life of the engine program: how it becomes ready, and how a run in it is ended."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import orjson

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, ConfigError
from llm_runtime.core.lease import Lease
from llm_runtime.engines.base import Work
from llm_runtime.engines.hf.calls import engine_call
from llm_runtime.engines.hf.host import CANNOT, LISTENING
from llm_runtime.engines.http_life import HttpLife
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.process import EngineProcess
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange

ANSWER_TIMEOUT_S = 5.0
RETRY_S = 0.2


class HfLife(HttpLife[int]):
    """See `HttpLife`; a handle is the number of a run. context_tokens: of the model, once it is ready."""

    def __init__(self, process: EngineProcess, upstream: Upstream, clock: Clock) -> None:
        super().__init__(process, upstream, clock, RunCancels(upstream, clock))
        self.context_tokens: int | None = None
        self._next_run = itertools.count(1)

    async def become_ready(self, timeout_s: float) -> None:
        """Raises what `EngineProcess.wait_ready` raises, with the program's own words for what makes its
        start hopeless. The process is not stopped."""
        try:
            await self.process.wait_ready(self._listening, timeout_s)
        except ConfigError as error:
            raise _in_its_words(error, self.process) from error
        models: Any = orjson.loads(await self.get("/v1/models") or b"{}")
        for model in models.get("data", ()):
            self.context_tokens = model.get("max_model_len")

    async def _listening(self) -> str:
        return await self.process.output.line_with_prefix(LISTENING)

    async def work_done(self) -> float | None:
        """Layers of prompts and tokens of answers so far."""
        health: Any = orjson.loads(await self.get("/health") or b"{}")
        return health.get("steps")  # type: ignore[no-any-return]

    def prepare(self, work: Work) -> tuple[EngineCall, int]:
        run_id = next(self._next_run)
        return engine_call(work.request, run_id), run_id


class RunCancels:
    """`http_life.Cancellations`: the program is told by the run's number and answers when it is over.

    Owned by one life of the engine: `run` by its supervised task, the rest from the loop.
    """

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._clock = clock
        self._unconfirmed: dict[int, Lease] = {}
        self._woken = asyncio.Event()

    def cancel(self, handle: int, exchange: Exchange, lease: Lease) -> None:
        lease.cancelling(self._clock.now())
        was_sent = exchange.was_sent
        exchange.abort()
        if was_sent:
            self._unconfirmed[handle] = lease
            self._woken.set()
        else:
            lease.free()

    def engine_gone(self) -> None:
        leases = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        for lease in leases:
            lease.free()

    async def run(self) -> None:
        """Until cancelled. Asks the program only while something is being cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._unconfirmed:
                handle = next(iter(self._unconfirmed))
                if not await self._is_over(handle):
                    await asyncio.sleep(RETRY_S)
                elif lease := self._unconfirmed.pop(handle, None):
                    lease.free()

    async def _is_over(self, handle: int) -> bool:
        exchange = self._upstream.request("DELETE", f"/runs/{handle}")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await exchange.head()
                await exchange.read_all()
        except (BackendError, TimeoutError):
            return False
        finally:
            exchange.abort()
        return exchange.status == 200


def _in_its_words(error: ConfigError, process: EngineProcess) -> ConfigError:
    for line in process.output.last():
        if line.startswith(CANNOT):
            told = ConfigError(line.removeprefix(CANNOT), reason=error.reason)
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            return told
    return error
