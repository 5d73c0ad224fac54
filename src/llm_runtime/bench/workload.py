"""What is asked: sessions of one or more requests, each following from the seed and its number.

Pure. A session knows lengths, class and text keys; the bytes are made by `bodies` just before they
are due, because a follow-up turn contains the answer to the one before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_runtime.bench.config import TrafficClass
from llm_runtime.bench.traces import TraceEntry

SEED_SHIFT = 64
"""Leaves room for numbers of sessions below a seed; whole numbers seed many times faster than text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. input_tokens: of the new user message alone; output_tokens: the cap sent.

    prefix: number of the shared beginning, None without one. block_ids: the message starts with
    these blocks, each of block_tokens, cut to input_tokens in total.
    """

    input_tokens: int
    output_tokens: int
    prefix: int | None = None
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """number: unique in a run, from 0. due_s: since the start of the load; None: when a client is free."""

    number: int
    traffic: TrafficClass
    turns: tuple[Turn, ...]
    due_s: float | None = None


class SessionSource(Protocol):
    """Sessions by number, the same ones however often and in whatever order they are asked for."""

    def session(self, number: int) -> Session | None:
        """None after the last one."""
        ...


class SyntheticSessions:
    """Drawn from the classes of traffic; endless."""

    def __init__(self, traffic: Sequence[TrafficClass], seed: int) -> None:
        self._traffic = tuple(traffic)
        self._shares = [traffic.share for traffic in self._traffic]
        self._seed = seed
        self._source = random.Random()

    def session(self, number: int) -> Session:
        source = self._source
        source.seed(self._seed << SEED_SHIFT ^ number)
        traffic = source.choices(self._traffic, self._shares)[0]
        prefix = source.randrange(traffic.prefix.count) if traffic.prefix.tokens else None
        turns = tuple(
            Turn(
                traffic.input_tokens.draw(source),
                traffic.output_tokens.draw(source),
                prefix if number_of_turn == 0 else None,
            )
            for number_of_turn in range(traffic.turns.draw(source))
        )
        return Session(number, traffic, turns)


class TraceSessions:
    """One session per entry of a trace, in the class that the first one of `traffic` describes."""

    def __init__(self, entries: Sequence[TraceEntry], traffic: TrafficClass) -> None:
        self._entries = entries
        self._traffic = traffic

    def session(self, number: int) -> Session | None:
        if number >= len(self._entries):
            return None
        entry = self._entries[number]
        turn = Turn(entry.input_tokens, entry.output_tokens, None, entry.block_ids, entry.block_tokens)
        return Session(number, self._traffic, (turn,), entry.at_s)
