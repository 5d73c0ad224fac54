"""How a tenant stands with its limits: what the gates know and what its clients are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """One limit per minute. remaining: whole units that could be taken at once now, at least 0.

    reset_s: seconds until all of `limit` could be taken at once again, if nothing were asked until then.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Places:
    """The limit on requests at once."""

    limit: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Right after one decision about one request of the tenant; None: no such limit."""

    requests: Window | None = None
    tokens: Window | None = None
    concurrency: Places | None = None
