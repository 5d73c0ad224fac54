"""Slots kept free for some: for tenants below their share, or for short requests.

Order alone gives these the next slot that becomes free; on a full engine that takes as long as somebody
else's answer still lasts. A slot kept free costs what one sequence less costs the engine, so none is kept
when nobody has used it for a while.
"""

from __future__ import annotations

from llm_runtime.core.request import RuntimeRequest

MEMORY = 1000
"""Requests started since the last favoured one, after which no slot is kept free."""


class Reserve:
    """Owned by one pool's scheduler, which tells it of every start and end. num_slots: kept free."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_held = 0
        self._num_since_favoured = MEMORY

    def allows(self, request: RuntimeRequest, *, is_favoured: bool, num_slots: int) -> bool:
        """is_favoured: it may have them. num_slots: in force. One is never kept from anybody."""
        if is_favoured or not self._num_held or self._num_since_favoured >= MEMORY:
            return True
        return self._num_held + request.num_slots <= num_slots - self._num_slots

    def started(self, request: RuntimeRequest, *, is_favoured: bool) -> None:
        self._num_held += request.num_slots
        self._num_since_favoured = 0 if is_favoured else self._num_since_favoured + 1

    def left(self, request: RuntimeRequest) -> None:
        self._num_held -= request.num_slots
