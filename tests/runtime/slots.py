"""A replica's slots without the replica."""

from __future__ import annotations

from dataclasses import dataclass

from llm_runtime.routing.base import ReplicaView


@dataclass
class Slots:
    """Implements `ReplicaSlots`, played by hand."""

    id: str
    num_slots: int = 2
    num_taken: int = 0
    num_held: int = 0
    is_static: bool = False
    ready: bool = True
    draining: bool = False

    @property
    def num_free(self) -> int:
        return 0 if self.is_static and self.num_taken else self.num_slots - self.num_taken

    def view(self, num_placed: int) -> ReplicaView:
        return ReplicaView(self.id, self.num_slots, self.num_free - num_placed, self.ready, self.draining)
