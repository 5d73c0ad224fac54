"""One request in the simulator, from the client's wish to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_runtime.admission.controller import Permit
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import DEFAULT_PRIORITY, EndpointKind, RuntimeRequest, TimeLimits

MODEL = "simulated"
NO_BODY: Mapping[str, Any] = {}
UNLIMITED = TimeLimits(request_s=None, idle_s=None)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as its client makes it. Instants in seconds since the load's start.

    output_tokens: what the engine will generate, which only the engine knows beforehand; max_tokens:
    the cap sent with it. estimate: the prompt's length as the gateway guesses it; None: it guesses
    right. block_ids: of the prompt's leading blocks, each of block_tokens; equal ids, equal text.
    patience_s: the client leaves if nothing has come by then. num_retries: as the client tells; original:
    number of the request that this one repeats.
    """

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    traffic: str = "default"
    tenant: str = "anonymous"
    priority: int = DEFAULT_PRIORITY
    session: int = 0
    turn: int = 0
    num_slots: int = 1
    estimate: int | None = None
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    limits: TimeLimits = UNLIMITED
    patience_s: float | None = None
    num_retries: int | None = None
    original: int | None = None
    stream: bool = True
    measured: bool = True


def request_of(ask: Ask, now: float) -> RuntimeRequest:
    """As the server would have made it of what its client sent."""
    return RuntimeRequest(
        id=str(ask.number),
        model=MODEL,
        kind=EndpointKind.CHAT,
        body=NO_BODY,
        arrived_at=now,
        created=0,
        tenant=ask.tenant,
        priority=ask.priority,
        limits=ask.limits,
        stream=ask.stream,
        num_slots=ask.num_slots,
        num_prompt_tokens=ask.prompt_tokens if ask.estimate is None else ask.estimate,
        max_tokens=ask.max_tokens,
        fingerprint=1 + (ask.number if ask.original is None else ask.original),
        num_retries=ask.num_retries,
    )


class Job:
    """An ask under way and, afterwards, what became of it. Written by the simulation and by the engine
    that works on it. Instants are seconds of virtual time.

    phases: where in its engine's log of steps the first and the last token lie (see `engines`).
    error: what ended it; None: completed, or not ended yet (`finished_at` None).
    """

    __slots__ = (
        "ask",
        "cached_tokens",
        "dispatched_at",
        "error",
        "finished_at",
        "first_token_at",
        "last_token_at",
        "num_attempts",
        "num_generated",
        "permit",
        "phases",
        "queued_at",
        "replica",
        "request",
        "run",
    )

    def __init__(self, ask: Ask, request: RuntimeRequest) -> None:
        self.ask = ask
        self.request = request
        self.queued_at: float | None = None
        self.dispatched_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finished_at: float | None = None
        self.replica: str | None = None
        self.cached_tokens = 0
        self.num_generated = 0
        self.num_attempts = 0
        self.error: LLMRuntimeError | None = None
        self.permit: Permit | None = None
        self.phases: tuple[int, int] | None = None
        self.run: Run | None = None

    @property
    def queue_wait_s(self) -> float | None:
        """Waiting in our queue, until it was last dispatched."""
        if self.queued_at is None or self.dispatched_at is None:
            return None
        return self.dispatched_at - self.queued_at

    def usage(self) -> Usage:
        return Usage(self.ask.prompt_tokens, self.num_generated * self.ask.num_slots, self.cached_tokens)


class Run:
    """One attempt of a job on one engine: what holds slots there. Owned by its engine.

    to_compute: prompt tokens left. last_step: the engine's step at whose end it is done, once it
    decodes. given_back: its job has gone back to the queue, so nobody counts its end. cancelled:
    it leaves at the next end of a step.
    """

    __slots__ = ("cancelled", "error", "given_back", "job", "last_step", "num_slots", "started", "to_compute")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.num_slots = job.ask.num_slots
        self.to_compute = 0
        self.last_step = -1
        self.started = False
        self.cancelled = False
        self.given_back = False
        self.error: LLMRuntimeError | None = None
