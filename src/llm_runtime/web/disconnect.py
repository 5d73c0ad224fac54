"""Notices at once that a client is gone; owned by an `async with`. A connection of ours tells by itself
(`Cycle.watch`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

import structlog

from llm_runtime.web.asgi import Receive

log = structlog.get_logger(__name__)


class DisconnectWatch:
    """A helper task that calls `on_gone` when the connection closes, in whatever phase the request is.

    Entered by the request's own task after the body was read; nothing else may call `receive` then.
    `on_gone` may come after the response is complete, and must be harmless then.
    """

    __slots__ = ("_on_gone", "_receive", "_task")

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception:
            log.exception("receive.failed")
        self._on_gone()

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        assert task is not None
        if task.done():
            return
        task.cancel()
        # Not `await task`: its CancelledError could not be told from one meant for us.
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: _resolve(ended))
        await ended


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
