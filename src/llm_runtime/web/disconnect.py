"""Notices at once that a client is gone: one helper task per request, owned by an `async with`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from llm_runtime.web.asgi import Receive


class DisconnectWatch:
    """Calls `on_gone` when the connection closes, in whatever phase the request is.

    Entered by the request's own task after the body was read; nothing else may call `receive` then.
    """

    __slots__ = ("_on_gone", "_receive", "_task")

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._on_gone()
                return

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        assert task is not None
        if not task.done():
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # it was us who were cancelled while waiting
