"""Tokens go from the engine's callback to the client's socket without a turn of the request's task; and
everything that is not simply a token still goes its careful way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from llm_runtime.core.outcome import Outcome
from llm_runtime.engines.upstream.exchange import MAX_READ_BYTES
from tests.dataplane.path import Path, turns
from tests.wire.builders import DONE, ROLE, STOP, USAGE, frame, text

ERROR = frame({"error": {"message": "broke", "type": "server_error", "code": 500}})


@asynccontextmanager
async def path(*, streaming: bool = True, is_next: bool = True) -> AsyncIterator[Path]:
    """streaming: the first token is through. is_next: see `Path`."""
    made = Path(is_next=is_next)
    await made.start()
    try:
        if streaming:
            made.head()
            made.arrive(ROLE + text("a"))
            await turns()
            assert b'"a"' in made.wire.body
        yield made
    finally:
        await made.aclose()


def outcome(made: Path) -> tuple[Outcome, str]:
    (record,) = made.recorder.records
    return record.outcome, record.reason


async def test_the_first_event_and_the_head_are_written_before_anything_else_runs() -> None:
    async with path(streaming=False) as made:
        made.head()
        assert made.wire.raw == b""
        assert nothing_to_do()
        made.arrive(ROLE + text("a"))
        assert made.wire.raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream" in made.wire.raw
        assert made.wire.body == ROLE + text("a")
        assert nothing_to_do()
        made.arrive(STOP + DONE, ends=True)
        await turns()
        assert made.wire.complete
        assert outcome(made) == (Outcome.COMPLETED, "stop")
        assert made.recorder.records[0].timeline.first_token_at is not None


async def test_behind_a_middleware_the_head_is_the_tasks() -> None:
    async with path(streaming=False, is_next=False) as made:
        made.head()
        made.arrive(ROLE + text("a"))
        assert made.wire.raw == b""
        await turns()
        assert made.wire.body == ROLE + text("a")
        made.arrive(text("b"))
        assert made.wire.body == ROLE + text("a") + text("b")


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_refusal_is_never_pushed(at_once: bool) -> None:
    async with path(streaming=False) as made:
        made.head(500)
        if not at_once:
            await turns()
        made.arrive(text("a"), ends=True)
        await turns()
        assert made.wire.raw == b""
        assert not made.cycle.started
        assert outcome(made)[0] is Outcome.FAILED


async def test_an_answer_that_begins_with_an_error_has_no_head_yet() -> None:
    """So it can still be tried again, or be told by its own status."""
    async with path(streaming=False) as made:
        made.head()
        made.arrive(ERROR)
        await turns()
        assert made.wire.raw == b""
        assert not made.cycle.started
        assert outcome(made)[0] is Outcome.FAILED


async def test_a_token_is_written_before_anything_else_runs() -> None:
    async with path() as made:
        for word in ("b", "c", "d"):
            made.arrive(text(word))
            assert made.wire.body.endswith(text(word))
        made.arrive(STOP + USAGE + DONE, ends=True)
        await turns()
        assert made.wire.complete
        assert outcome(made) == (Outcome.COMPLETED, "stop")
        timeline = made.recorder.records[0].timeline
        assert sum(timeline.itl_counts or ()) == 3


async def test_a_chunk_goes_on_as_it_came_only_where_its_event_does() -> None:
    async with path() as made:
        made.arrive(text("b"))  # from here on the event's envelope is known
        as_read = text("c")
        before = made.wire.raw
        made.arrive(as_read)
        assert made.wire.raw[len(before) :] == b"%x\r\n%b\r\n" % (len(as_read), as_read)
        for _ in range(2):  # parsed, and then known by its envelope
            made.arrive(text("d", model="other"))
            assert made.wire.body.endswith(text("d"))
            assert b"other" not in made.wire.raw


async def test_an_event_in_pieces_waits_for_its_end() -> None:
    async with path() as made:
        before = made.wire.body
        made.arrive(text("bcd")[:30])
        assert made.wire.body == before
        made.arrive(text("bcd")[30:])
        assert made.wire.body == before + text("bcd")


async def test_a_slow_reader_gets_no_more_until_it_has_read() -> None:
    async with path() as made:
        made.wire.write_paused = True
        made.arrive(text("b"))
        assert made.wire.body.endswith(text("b"))
        await turns()
        before = made.wire.body
        for _ in range(10):
            made.arrive(text("c" * 1000))
            await turns()
        assert made.wire.body == before
        assert made.exchange.num_buffered > 10_000
        made.wire.read_on()
        await turns()
        assert made.exchange.num_buffered == 0
        assert made.wire.body == before + text("c" * 1000) * 10
        made.arrive(text("d"))
        assert made.wire.body.endswith(text("d"))


async def test_much_at_once_is_handed_over_in_portions() -> None:
    async with path() as made:
        before = made.wire.body
        for _ in range(3 * MAX_READ_BYTES // 1000):
            made.exchange.parts.append(text("x" * 1000))
            made.exchange.num_buffered += len(text("x" * 1000))
        made.arrive(b"")
        assert made.wire.body == before
        await turns(30)
        assert made.exchange.num_buffered == 0


async def test_an_error_in_one_read_with_tokens_is_told_at_once() -> None:
    """Not when the next bytes arrive, which may be never; pushed or pulled."""
    for streaming in (True, False):
        async with path(streaming=streaming) as made:
            if not streaming:
                made.head()
                made.arrive(ROLE + text("b") + ERROR)
            else:
                made.arrive(text("b") + ERROR)
            await turns()
            assert b'"b"' in made.wire.body
            assert b'data: {"error"' in made.wire.body
            assert made.wire.complete
            assert made.engine.num_releases == 1
            assert outcome(made)[0] is Outcome.FAILED


async def test_nonsense_mid_stream_is_an_error_event() -> None:
    async with path() as made:
        made.arrive(b"data: {broken\n\n")
        await turns()
        assert b'data: {"error"' in made.wire.body
        assert outcome(made)[0] is Outcome.FAILED


@pytest.mark.parametrize("paused", [False, True])
async def test_the_engine_dies(paused: bool) -> None:
    async with path() as made:
        made.wire.write_paused = paused
        made.arrive(text("b"))
        made.die()
        await turns()
        made.wire.read_on()
        await turns()
        assert b'"b"' in made.wire.body
        assert b'data: {"error"' in made.wire.body
        assert outcome(made)[0] is Outcome.FAILED


@pytest.mark.parametrize("paused", [False, True])
async def test_the_client_leaves(paused: bool) -> None:
    async with path() as made:
        made.wire.write_paused = paused
        made.arrive(text("b"))
        made.leave()
        made.arrive(text("c"))  # on its way already
        await turns()
        assert outcome(made) == (Outcome.CANCELLED, "client_gone")
        assert made.exchange.ended
        assert made.engine.num_releases == 1


async def test_a_drain_ends_what_is_pushed() -> None:
    async with path() as made:
        made.runtime.begin_drain()
        made.runtime.end_drain()
        await made.runtime.drained()
        assert b'data: {"error"' in made.wire.body
        assert made.wire.complete


async def test_preempted_before_the_first_byte_it_runs_again() -> None:
    async with path(streaming=False) as made:
        assert made.handle is not None
        made.handle.preempt()
        await turns()
        assert len(made.engine.exchanges) == 2
        made.head()
        made.arrive(ROLE + text("b"))
        await turns()
        made.handle.preempt()
        made.arrive(text("c"))
        await turns()
        made.arrive(STOP + DONE, ends=True)
        await turns()
        assert len(made.engine.exchanges) == 2
        assert outcome(made) == (Outcome.COMPLETED, "stop")


async def test_preempted_again_while_the_client_reads_slowly() -> None:
    """What it still has to read is an earlier reply on its connection: nothing of this one waits for that."""
    async with path(streaming=False) as made:
        made.wire.write_paused = True
        for num_tries in (2, 3):
            assert made.handle is not None
            made.handle.preempt()
            await turns()
            assert len(made.engine.exchanges) == num_tries
        made.head()
        made.arrive(ROLE + text("a"))
        await turns()
        assert made.wire.body == ROLE + text("a")
        made.arrive(text("b"))
        await turns()
        assert made.wire.body == ROLE + text("a")
        made.wire.read_on()
        await turns()
        assert made.wire.body == ROLE + text("a") + text("b")


async def test_comments_before_the_first_byte_and_then_tokens() -> None:
    """Headers are out by then, so the engine's first bytes may be pushed; they still commit."""
    async with path(streaming=False) as made:
        handle = made.handle
        assert handle is not None
        handle.keep_alive_due = True
        made.exchange.poke()
        await turns()
        assert made.wire.body == b": keep-alive\n\n"
        made.head()
        await turns()
        made.arrive(ROLE + text("b"))
        assert made.wire.body.endswith(text("b"))
        handle.preempt()
        await turns()
        made.arrive(STOP + DONE, ends=True)
        await turns()
        assert len(made.engine.exchanges) == 1
        assert outcome(made) == (Outcome.COMPLETED, "stop")


async def test_what_goes_wrong_in_the_callback_is_the_requests_failure() -> None:
    """And not the connection's, whose callback it happened in."""
    async with path() as made:
        made.wire.write = _broken  # type: ignore[method-assign]
        made.arrive(text("b"))
        del made.wire.write
        await turns()
        assert made.task is not None
        assert made.task.done()
        assert outcome(made)[0] is Outcome.FAILED
        assert isinstance(made.task.exception(), ZeroDivisionError)
        made.task = None


def _broken(data: bytes) -> None:
    raise ZeroDivisionError


async def test_nothing_runs_per_token_but_the_callback() -> None:
    """No task is woken: the loop has nothing to do after a token."""
    async with path() as made:
        made.arrive(text("b"))
        assert nothing_to_do()


def nothing_to_do() -> bool:
    return not asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
