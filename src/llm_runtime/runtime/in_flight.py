"""The requests in flight, from the capacity gate to their one end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.runtime.request_handle import RequestHandle

LAST_WORDS_S = 1.0
"""How long requests that are ended from here may take to tell their clients."""


class InFlight:
    """Owned by the runtime, used on the loop's thread. by_id: all of them, changed by `add` and `discard`."""

    def __init__(self) -> None:
        self.by_id: dict[str, RequestHandle] = {}
        self._empty: asyncio.Event | None = None
        """Of those who wait for the end of all; nobody does for as long as the server serves."""

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, handle: RequestHandle) -> None:
        self.by_id[handle.request.id] = handle
        if self._empty is not None:
            self._empty.clear()

    def discard(self, request_id: str) -> None:
        self.by_id.pop(request_id, None)
        if self._empty is not None and not self.by_id:
            self._empty.set()

    def fail(self, error: Callable[[], LLMRuntimeError]) -> None:
        """Leaves each of them an error of its own; returns before they have ended."""
        for handle in tuple(self.by_id.values()):
            handle.fail(error())

    async def end(self, error: Callable[[], LLMRuntimeError]) -> None:
        """Fails all of them and waits for their ends; who does not read the news in time is cut off."""
        self.fail(error)
        if await self.ended(LAST_WORDS_S):
            return
        for handle in tuple(self.by_id.values()):
            handle.cut()
        await self.ended(LAST_WORDS_S)

    async def ended(self, timeout_s: float, unless: asyncio.Event | None = None) -> bool:
        """Waits until none is left, or `unless` is set, or the time is over; whether none is left."""
        empty = self._empty
        if empty is None:
            empty = self._empty = asyncio.Event()
            if not self.by_id:
                empty.set()
        events = [empty] if unless is None else [empty, unless]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return empty.is_set()
