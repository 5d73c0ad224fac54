"""Clients that do as they are told, on a real server: who is refused comes back when the refusal said,
with the same bytes and a count of its tries, as the OpenAI SDKs do.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from llm_runtime.bench.bodies import BodyWriter
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import now, quiet_collector
from llm_runtime.bench.config import Target
from llm_runtime.bench.pace import Sleeper
from llm_runtime.bench.prompts import PromptWriter
from llm_runtime.bench.timers import ExactTimers
from llm_runtime.bench.workload import Session

REFUSALS = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Patience:
    """tries: of one request in all. mean_wait_s: who is told to wait longer than he is willing to goes away;
    how long that is differs by client and is exponential."""

    tries: int = 3
    mean_wait_s: float = 12.0

    def wait_s(self, number: int) -> float:
        """Of the client with that number; always the same."""
        return random.Random(f"patience:{number}").expovariate(1 / self.mean_wait_s)


@dataclass(frozen=True, slots=True)
class Try:
    """number: of the request; attempt: 0 first. at_s: when it was sent, since the load's start. told_s: what
    its refusal said. answered_s: from sending to the end of the refusal; ttft_s: to the first token."""

    number: int
    attempt: int
    at_s: float
    status: int
    told_s: float | None = None
    answered_s: float | None = None
    ttft_s: float | None = None
    completed: bool = False


async def play_returning(target: Target, sessions: Sequence[Session], patience: Patience) -> list[Try]:
    """Sends each session's first turn at its `due_s`. In the order in which they ended."""
    async with LoadClient(target) as client:
        model = target.model or await client.first_model()
        bodies = BodyWriter(target, model, PromptWriter(secrets.token_hex(8), 1.0))
        players = _Players(target, client, bodies, patience)
        with quiet_collector():
            return await players.play(sessions)


class _Players:
    def __init__(self, target: Target, client: LoadClient, bodies: BodyWriter, patience: Patience) -> None:
        self._target = target
        self._client = client
        self._bodies = bodies
        self._patience = patience
        self._timers = ExactTimers()
        self._sleeper = Sleeper(self._timers)
        self._origin = 0.0
        self._tries: list[Try] = []

    async def play(self, sessions: Sequence[Session]) -> list[Try]:
        texts = [self._bodies.user_text(session, 0) for session in sessions]
        bodies = [
            self._bodies.body(session, 0, [{"role": "user", "content": text}])
            for session, text in zip(sessions, texts, strict=True)
        ]
        self._origin = now()
        try:
            async with asyncio.TaskGroup() as group:
                for session, body in zip(sessions, bodies, strict=True):
                    group.create_task(self._client_of(session, body))
        finally:
            self._timers.close()
        return self._tries

    async def _client_of(self, session: Session, body: bytes) -> None:
        assert session.due_s is not None
        due_at, wait_s = self._origin + session.due_s, self._patience.wait_s(session.number)
        for attempt in range(self._patience.tries):
            await self._sleeper.until(due_at)
            tried = await self._try(session, body, attempt)
            self._tries.append(tried)
            if tried.told_s is None or tried.told_s > wait_s:
                return
            due_at = now() + tried.told_s

    async def _try(self, session: Session, body: bytes, attempt: int) -> Try:
        headers = {**self._bodies.headers(session), "x-stainless-retry-count": str(attempt)}
        exchange = self._client.send(self._bodies.path, body, headers, wants_stream=True, keep_text=False)
        timer = asyncio.get_running_loop().call_later(self._target.timeout_s, exchange.give_up, "timeout")
        await exchange.wait()
        timer.cancel()
        sent_at = now() if exchange.sent_at is None else exchange.sent_at
        ended_at = now() if exchange.finished_at is None else exchange.finished_at
        token_read_at = () if exchange.answer is None else exchange.answer.token_read_at
        refused = exchange.status in REFUSALS
        return Try(
            session.number,
            attempt,
            sent_at - self._origin,
            exchange.status,
            told_s=_told_s(exchange.headers) if refused else None,
            answered_s=ended_at - sent_at if refused else None,
            ttft_s=token_read_at[0] - sent_at if token_read_at else None,
            completed=exchange.problem is None,
        )


def _told_s(headers: dict[bytes, bytes]) -> float | None:
    told = headers.get(b"retry-after-ms")
    return None if told is None else float(told) / 1000
