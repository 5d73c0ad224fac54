"""The `Backend` seam: how the runtime speaks to one engine instance (one replica).

A backend speaks its engine's dialect and hands back bytes in the client's: complete SSE events for
a stream, one JSON body for a plain reply. It never decides who runs: it gets work only while it has
free slots, and it is the only one that frees a lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, final

from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.wire.messages import TEXT_ONLY


class Batching(StrEnum):
    """STATIC: runs one batch from start to end. CONTINUOUS: takes a sequence whenever a slot is free."""

    STATIC = "static"
    CONTINUOUS = "continuous"


class BackendState(StrEnum):
    ABSENT = "absent"  # a place for an engine that runs elsewhere, and nobody has taken it
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    CRASHED = "crashed"  # backing off, will be started again
    FAILED = "failed"  # crash loop or broken configuration: nobody starts it again
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What the scheduler and the API may know of an engine.

    num_slots: sequences at once (a static engine: its largest batch).
    context_tokens: prompt plus completion of one sequence; None where the engine decides.
    model_created: Unix seconds, for `/v1/models`.
    models: all names it answers to, where `model` is not the only one or may change; empty and not
        ready yet: not known yet. content_parts: types of message content it takes; None: any.
    """

    name: str
    model: str
    batching: Batching
    num_slots: int
    context_tokens: int | None
    endpoints: frozenset[EndpointKind]
    model_created: int = 0
    models: tuple[str, ...] | None = None
    content_parts: frozenset[str] | None = TEXT_ONLY

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model,) if self.models is None else self.models


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class BackendStatus:
    """state, and in words why, where it is not READY (for health answers; no paths, no secrets).

    fail_fast: it may come back, but nobody knows when: requests are refused instead of kept waiting.
    """

    state: Final[BackendState]
    reason: Final[str | None]
    fail_fast: Final[bool]

    def __init__(
        self,
        state: BackendState,
        reason: str | None = None,
        fail_fast: bool = False,
    ) -> None:
        self.state = state
        self.reason = reason
        self.fail_fast = fail_fast


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class Work:
    """One request and the slots granted for it. send_once: no attempt is left, not even for a connection
    that turns out to have been closed before the request reached it."""

    request: Final[RuntimeRequest]
    lease: Final[Lease]
    send_once: Final[bool]

    def __init__(
        self,
        request: RuntimeRequest,
        lease: Lease,
        send_once: bool = False,
    ) -> None:
        self.request = request
        self.lease = lease
        self.send_once = send_once


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class Finished:
    """The last item of a stream. reason: OpenAI's finish reason (of choice 0).

    failed: the engine's answer is whole, was passed on, and says itself that it failed.
    """

    usage: Final[Usage]
    reason: Final[str]
    failed: Final[bool]

    def __init__(
        self,
        usage: Usage,
        reason: str,
        failed: bool = False,
    ) -> None:
        self.usage = usage
        self.reason = reason
        self.failed = failed


class TokenSink:
    """Takes an engine's bytes on their way to the client, and never blocks. See `core.sink` for why this is
    a class."""

    __slots__ = ()

    def push_token(self, data: bytes, chunk: bytes | None, now: float, has_token: bool) -> bool:
        """data, chunk: as for `Sink`. now: monotonic seconds. has_token: as a stream's for the item pulled
        last. False: no more until the stream is pulled again."""
        raise NotImplementedError


class SignsOfLife:
    """When an engine was last seen to do something. Shared by its streams, which write it, and its watch."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -math.inf
        """Monotonic seconds."""

    @property
    def seen_at(self) -> float | None:
        """None before the first."""
        return self.at if self.at > -math.inf else None


class EngineStream(Protocol):
    """What one request gets from the engine; pulled by the request's own task, by nobody else.

    Items are `bytes` that can be sent to the client as they are: all complete events of one
    wake-up, or the whole JSON body of a plain reply. `b""` means nothing arrived but somebody
    called `poke`. `Finished` is the last item. What goes wrong is raised, once: an engine's refusal
    as InvalidRequest or BackendUnavailable, a failure as another BackendError.
    """

    finished: Finished | None
    """Set as soon as the end is known, often together with the last bytes: the caller may then
    send them as the last write and need not pull again."""

    has_token: bool
    """Whether the item pulled last brought content, reasoning or tool-call tokens (a role chunk
    does not). For a plain reply the backend sets `first_token_at` itself."""

    first_token_at: float | None
    """Monotonic instant of the first token; None before it."""

    def __aiter__(self) -> EngineStream: ...

    async def __anext__(self) -> bytes | Finished: ...

    def spent(self) -> Usage:
        """What was used so far: the engine's count where known, else an estimate marked as such."""
        ...

    def poke(self) -> None:
        """Makes a pending or the next pull return promptly. Safe at any time, from the loop."""
        ...


class PushingStream(EngineStream, Protocol):
    """A stream that can save the wake-up of its task for every token."""

    def push_to(self, sink: TokenSink | None) -> None:
        """While a pull waits, hand what would be returned to `sink`, from wherever it arrives; the pull goes
        on waiting. It returns what is no plain part of the answer
        (its last bytes, an error, a note by `poke`) and b"" after the sink returned False.
        """
        ...


class Run(Protocol):
    """A batch the engine is working on."""

    def stream(self, request_id: str) -> EngineStream: ...

    def cancel(self, request_id: str) -> None:
        """Asks the engine to stop; does not wait. The lease becomes free when the engine confirms.

        Idempotent; harmless after the end. The stream must not be pulled afterwards.
        """
        ...


class Backend(Protocol):
    @property
    def info(self) -> BackendInfo: ...

    @property
    def status(self) -> BackendStatus: ...

    def check(self, request: RuntimeRequest) -> None:
        """Raises InvalidRequest naming the field that this engine cannot honour. Pure, before queueing."""
        ...

    async def start(self, on_change: Callable[[], None]) -> None:
        """Starts the engine and returns when it is ready. Later changes of `status` call `on_change`.

        Raises ConfigError where trying again cannot help, BackendUnavailable otherwise. Cancelling
        it leaves nothing behind.
        """
        ...

    def open(self, batch: Sequence[Work]) -> Run:
        """Takes work; never blocks and never raises for the engine's sake (streams raise).

        Called only while READY and with free slots for all of it. Static engines get one batch at a
        time, continuous engines one request at a time or several.
        """
        ...

    def signs_of_life(self) -> float | None:
        """Monotonic instant of the engine's last visible progress (token, prefill); None if unseen."""
        ...

    async def aclose(self) -> None:
        """Stops the engine: politely, then by force. Idempotent."""
        ...
