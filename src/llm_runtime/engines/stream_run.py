"""A run of requests that know nothing of each other: for engines that batch by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llm_runtime.engines.base import EngineStream


class OpenStream(EngineStream, Protocol):
    def cancel(self) -> None:
        """As `Run.cancel`."""
        ...


class StreamRun:
    """`base.Run` over independent streams."""

    def __init__(self, streams: Mapping[str, OpenStream]) -> None:
        self._streams = streams

    def stream(self, request_id: str) -> EngineStream:
        return self._streams[request_id]

    def cancel(self, request_id: str) -> None:
        self._streams[request_id].cancel()
