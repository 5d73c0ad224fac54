"""What the seats need of Ray, as protocols: a way to a certain replica, and who is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that takes requests. id: Ray's, of this one life. facts: what it said of its engine."""

    id: str
    node: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is there now. dead: ids that will never come back, as far as that is known."""

    members: Sequence[Member]
    dead: frozenset[str] = frozenset()


class ReplicaGone(Exception):
    """The replica that a request was meant for, or was in, does not answer.

    dead: it never will again; else it may be a matter of the network, or of its leaving.
    """

    def __init__(self, message: str, *, dead: bool) -> None:
        super().__init__(message)
        self.dead = dead


class Answer(Protocol):
    """Frames of one request, to be read to their end by one task."""

    async def __anext__(self) -> bytes:
        """The next frame. Raises StopAsyncIteration once the replica is done with the request, whether
        it finished or was cancelled; ReplicaGone where there is no replica any more."""
        ...

    def cancel(self) -> None:
        """Asks the replica to stop. The end of the frames is its answer. Idempotent."""
        ...


class Link(Protocol):
    """The way to the replicas of one deployment."""

    def call(self, member: str, request: bytes) -> Answer:
        """Sends a request to that very replica. Never blocks and never raises for the replica's sake."""
        ...
