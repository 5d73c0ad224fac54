"""A run that never was: stands in where a backend broke its promise not to raise in `open`."""

from __future__ import annotations

from typing import NoReturn

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.engines.base import EngineStream, Finished


class FailedRun:
    """Implements `Run`. Each of its streams raises `error`, so the requests end, or are tried again, in
    their own tasks and by the same rules as ever."""

    __slots__ = ("_error",)

    def __init__(self, error: LLMRuntimeError) -> None:
        self._error = error

    def stream(self, request_id: str) -> EngineStream:
        return _FailedStream(self._error)

    def cancel(self, request_id: str) -> None:
        """Nothing runs."""


class _FailedStream:
    __slots__ = ("_error", "finished", "first_token_at", "has_token")

    def __init__(self, error: LLMRuntimeError) -> None:
        self._error = error
        self.finished: Finished | None = None
        self.first_token_at: float | None = None
        self.has_token = False

    def __aiter__(self) -> EngineStream:
        return self

    async def __anext__(self) -> NoReturn:
        raise self._error

    def spent(self) -> Usage:
        return Usage(estimated=True)

    def poke(self) -> None:
        """A pull never waits."""
