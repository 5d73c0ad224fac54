"""Where Ray's router tells who is there, and the ingress hears it: Ray makes its router by itself and gives
nobody a reference to it, so the two meet here."""

from __future__ import annotations

import threading
from collections.abc import Callable

from llm_runtime.engines.ray.base import Membership

Subscriber = Callable[[Membership], None]


class MembershipBoard:
    """Who is there, by deployment, for this process. Ray's router writes, on whichever thread it runs;
    subscribers are told there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Membership] = {}
        self._subscribers: dict[str, Subscriber] = {}

    def subscribe(self, deployment: str, subscriber: Subscriber) -> None:
        """Told at once of what is known, then of every change. One subscriber for each deployment."""
        with self._lock:
            self._subscribers[deployment] = subscriber
            known = self._known.get(deployment)
        if known is not None:
            subscriber(known)

    def unsubscribe(self, deployment: str) -> None:
        with self._lock:
            self._subscribers.pop(deployment, None)

    def publish(self, deployment: str, membership: Membership) -> None:
        with self._lock:
            self._known[deployment] = membership
            subscriber = self._subscribers.get(deployment)
        if subscriber is not None:
            subscriber(membership)


BOARD = MembershipBoard()
"""Of this process."""
