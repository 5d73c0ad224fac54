"""Room kept for some: for tenants below their share, or for short requests.

Order alone gives these the next slot that becomes free; on a full engine that takes as long as somebody
else's answer still lasts, and a prompt then stands behind those that were started just before. So slots can
be kept free, and the others' prompts be started one after the other instead of all at once. A slot kept
free costs what one sequence less costs the engine; nothing is kept when nobody has used it for a while.
"""

from __future__ import annotations

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.base import PoolSize

MEMORY = 1000
"""Requests started since a favoured one last found others running, after which nothing is kept."""


class Reserve:
    """Owned by one pool's scheduler, which tells it of every start and end.

    num_slots: kept free. prompts: requests at their prompt on each engine, above which only favoured ones
    start; None: any number.
    """

    def __init__(self, num_slots: int, prompts: int | None = None) -> None:
        self.prompts = prompts
        self._num_slots = num_slots
        self._num_held = 0
        self._num_since_favoured = MEMORY

    def allows(
        self, request: RuntimeRequest, size: PoolSize, *, is_favoured: bool, num_at_prompt: int = 0
    ) -> bool:
        """is_favoured: it may have what is kept. size: in force. One request is never kept from running."""
        if is_favoured or not self._num_held or self._num_since_favoured >= MEMORY:
            return True
        if self.prompts is not None and num_at_prompt >= self.prompts * max(1, size.num_replicas):
            return False
        return self._num_held + request.num_slots <= size.num_slots - self._num_slots

    def started(self, request: RuntimeRequest, *, is_favoured: bool) -> None:
        needed = is_favoured and self._num_held > 0
        self._num_since_favoured = 0 if needed else self._num_since_favoured + 1
        self._num_held += request.num_slots

    def left(self, request: RuntimeRequest) -> None:
        self._num_held -= request.num_slots
