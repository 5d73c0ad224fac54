"""A replica's prefix cache: least recently used blocks, a prompt matched from its start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Owned by one engine. Block ids name all the text up to and including the block, as hashes that are
    chained do, so a block is of use only behind all those before it.

    Capacity is in tokens; a block that is in use can be driven out, which costs later prompts only.
    """

    __slots__ = ("_blocks", "_capacity_tokens", "_num_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._num_tokens = 0
        self._blocks: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, block_ids: Sequence[int], block_tokens: int, prompt_tokens: int) -> int:
        """Tokens of the prompt that need not be computed; the last token always must be."""
        num_blocks = 0
        for block in block_ids:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            num_blocks += 1
        return max(0, min(num_blocks * block_tokens, prompt_tokens - 1))

    def add(self, block_ids: Sequence[int], block_tokens: int) -> None:
        """The prompt has been computed. The first blocks count as used last: none is of use without
        those before it."""
        blocks = self._blocks
        for block in reversed(block_ids):
            held = blocks.pop(block, 0)
            blocks[block] = block_tokens
            self._num_tokens += block_tokens - held
        while self._num_tokens > self._capacity_tokens:
            _, freed = blocks.popitem(last=False)
            self._num_tokens -= freed
