"""Requests per second that a real server answers in time when they come at random, and at most."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from llm_runtime.bench.arrivals import offsets
from llm_runtime.bench.config import OpenLoop, Target, TrafficClass
from llm_runtime.bench.returning import Patience, Try, play_returning
from llm_runtime.bench.workload import Session, SyntheticSessions

CAPACITY_SEED = 10_000
ONCE = Patience(tries=1)


@dataclass(frozen=True, slots=True)
class Load:
    """Poisson arrivals of one class for load_s, of which those due in the first warmup_s do not count.
    ttft_s: within which the first token of a good answer comes, after the try that got it was sent."""

    traffic: TrafficClass
    load_s: float
    warmup_s: float
    ttft_s: float


def arriving(traffic: TrafficClass, rate: float, seconds: float, seed: int) -> list[Session]:
    """Those due within so many seconds; rate: per second."""
    drawn = SyntheticSessions((traffic,), seed)
    due = takewhile(lambda at_s: at_s < seconds, offsets(OpenLoop(rate), seed))
    return [replace(drawn.session(number), due_s=at_s) for number, at_s in enumerate(due)]


async def goodput(
    url: str, load: Load, rate: float, seed: int, patience: Patience = ONCE
) -> tuple[float, list[Try]]:
    """Good answers per second, of requests first due in the counted time; with all tries."""
    sessions = arriving(load.traffic, rate, load.load_s, seed)
    counted = {each.number for each in sessions if each.due_s is not None and each.due_s >= load.warmup_s}
    tries = await play_returning(Target(url, ignore_eos=True), sessions, patience)
    return num_good(tries, counted, load.ttft_s) / (load.load_s - load.warmup_s), tries


def num_good(tries: Sequence[Try], counted: set[int], ttft_s: float) -> int:
    return sum(
        each.number in counted and each.completed and each.ttft_s is not None and each.ttft_s <= ttft_s
        for each in tries
    )


async def capacity(url: str, traffic: TrafficClass, num_requests: int) -> float:
    """Requests per second that are completed while somebody always waits: of so many that come at once."""
    drawn = SyntheticSessions((traffic,), CAPACITY_SEED)
    at_once = [replace(drawn.session(number), due_s=0.0) for number in range(num_requests)]
    begun = asyncio.get_running_loop().time()
    await play_returning(Target(url, ignore_eos=True), at_once, ONCE)
    return num_requests / (asyncio.get_running_loop().time() - begun)
