"""What a connection's cycles look at, apart from their own request."""

from __future__ import annotations

import asyncio


class Flow:
    """What a connection shares with its cycles, written by the connection.

    paused: the client reads slowly. caller: the application's, who knows by it who has called before. task:
    that serves the latest cycle of those that were started.
    """

    __slots__ = ("caller", "paused", "task", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.paused = False
        self.caller: object | None = None
        self.task: asyncio.Task[None] | None = None
