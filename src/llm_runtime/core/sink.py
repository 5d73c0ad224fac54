"""Where bytes go that wait for nobody's task: from a connection's own callback to the next in line.

A class and not a `Callable`, because a compiled one that extends it is called without Python between.
"""

from __future__ import annotations

from collections.abc import Callable


class Sink:
    """Takes bytes on their way to the client, and never blocks."""

    __slots__ = ()

    def push(self, data: bytes, chunk: bytes | None) -> bool:
        """chunk: the same as one chunk of HTTP, its length in lower-case digits without zeros before, where
        they came as one, so that nobody need write it anew. False: no more until it is asked for."""
        raise NotImplementedError


class CallSink(Sink):
    """A function as a sink: what is not compiled can't extend what is."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[bytes, bytes | None], bool]) -> None:
        self._call = call

    def push(self, data: bytes, chunk: bytes | None) -> bool:
        return self._call(data, chunk)
