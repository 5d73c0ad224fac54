"""Slots kept free for tenants that have had less than their share, so that these start at once.

Fair order alone gives such a tenant the next slot that becomes free; on a full engine that takes as long as
somebody else's answer still lasts. A slot kept free costs what one sequence less costs the engine, so none
is kept when nobody has used it for a while.
"""

from __future__ import annotations

from llm_runtime.core.request import RuntimeRequest

MEMORY = 1000
"""Requests started since the last one of a tenant below its share, after which no slot is kept free."""


class Reserve:
    """Owned by one pool's scheduler, which tells it of every start and end. num_slots: kept free."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_held = 0
        self._num_since_owed = MEMORY

    def allows(self, request: RuntimeRequest, *, is_owed: bool, num_slots: int) -> bool:
        """is_owed: its tenant is below its share. num_slots: in force. One is never kept from anybody."""
        if is_owed or not self._num_held or self._num_since_owed >= MEMORY:
            return True
        return self._num_held + request.num_slots <= num_slots - self._num_slots

    def started(self, request: RuntimeRequest, *, is_owed: bool) -> None:
        self._num_held += request.num_slots
        self._num_since_owed = 0 if is_owed else self._num_since_owed + 1

    def left(self, request: RuntimeRequest) -> None:
        self._num_held -= request.num_slots
