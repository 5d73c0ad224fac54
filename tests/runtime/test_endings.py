"""Every request ends exactly once, in the way its books say. In virtual time, without a server."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    ClientGone,
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    LLMRuntimeError,
    QueueFull,
    QueueTimeout,
    Shed,
)
from llm_runtime.core.outcome import Outcome
from llm_runtime.runtime.endings import ending, overdue
from llm_runtime.runtime.pace import Due
from tests.runtime.rig import rig, virtual
from tests.support.scripted import ScriptedBackend, ScriptedStream, answer


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ClientGone("x"), Outcome.CANCELLED, "client_gone"),
        (ClientGone("x", reason="slow_client"), Outcome.CANCELLED, "slow_client"),
        (Draining("x"), Outcome.CANCELLED, "server_stopped"),
        (asyncio.CancelledError(), Outcome.CANCELLED, "server_stopped"),
        (QueueTimeout("x"), Outcome.EVICTED, "queue_timeout"),
        (Shed("x"), Outcome.EVICTED, "shed"),
        (DeadlineExceeded("x"), Outcome.TIMED_OUT, "deadline_exceeded"),
        (BackendUnavailable("x"), Outcome.FAILED, "backend_unavailable"),
        (BackendCrashed("x"), Outcome.FAILED, "backend_crashed"),
        (BackendProtocolError("x"), Outcome.FAILED, "backend_protocol_error"),
        (ContextLengthExceeded("x"), Outcome.FAILED, "context_length_exceeded"),
        (ZeroDivisionError(), Outcome.FAILED, "internal_error"),
    ],
)
def test_errors_as_outcomes(error: BaseException, outcome: Outcome, reason: str) -> None:
    assert ending(error) == (outcome, reason)


@pytest.mark.parametrize("what", [due for due in Due if due not in (Due.KEEP_ALIVE, Due.WRITE_STALL)])
def test_a_limit_means_eviction_in_the_queue_and_a_time_out_after_it(what: Due) -> None:
    waited, dispatched = overdue(what, 2.5), overdue(what, None)
    assert isinstance(waited, QueueTimeout)
    assert waited.retry_after_s == 2.5
    assert isinstance(dispatched, DeadlineExceeded)
    assert what.value in dispatched.message


# ---- the ordinary end


@virtual
async def test_a_stream_completes() -> None:
    async with rig(ScriptedBackend(on_open=answer("a", "b"))) as r:
        client, task = r.play(r.request("one"))
        await task
        record = await r.recorder.ended("one")
    assert client.complete
    assert b"".join(client.received).endswith(b"data: [DONE]\n\n")
    assert r.recorder.ends("one") == [(Outcome.COMPLETED, "stop")]
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (7, 2)
    assert record.replica == "scripted-0"


@virtual
async def test_a_plain_reply_completes() -> None:
    async with rig(ScriptedBackend(on_open=answer("a", "b"))) as r:
        client, task = r.play(r.request("one", stream=False))
        await task
    assert client.complete
    assert b'"content":"ab"' in client.received[0]
    assert r.recorder.ends("one") == [(Outcome.COMPLETED, "stop")]


@virtual
async def test_an_engine_may_tell_the_end_in_a_pull_of_its_own() -> None:
    def speak(stream: ScriptedStream) -> None:
        stream.say("a")
        stream.end("length", with_last_bytes=False)

    async with rig(ScriptedBackend(on_open=speak)) as r:
        clients = [r.play(r.request(name, stream=stream)) for name, stream in (("s", True), ("p", False))]
        for _, task in clients:
            await task
    assert r.recorder.ends("s") == r.recorder.ends("p") == [(Outcome.COMPLETED, "length")]


# ---- the client leaves


@virtual
async def test_who_leaves_the_queue_is_never_dispatched() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        first, _ = r.play(r.request("running"))
        running = await r.backend.got(0)
        waiting = [r.play(r.request(f"gone{n}", stream=n % 2 == 0))[0] for n in range(10)]
        await r.recorder.until(lambda: r.dispatcher.num_waiting == 10, "ten in the queue")
        for client in waiting:
            client.leave()
        assert r.dispatcher.num_waiting == 0  # at once, not when their tasks have had their turn
        running.end()
        await r.recorder.until(lambda: len(r.recorder.records) == 11, "all ends")
        assert r.backend.ids == ["running"]
    assert all(r.recorder.ends(f"gone{n}") == [(Outcome.CANCELLED, "client_gone")] for n in range(10))
    assert first.complete
    assert r.dispatcher.num_waiting_tokens == 0


@virtual
async def test_leaving_together_with_the_grant_does_not_lose_the_slot() -> None:
    """The slot comes and the client goes in one turn of the loop, in either order."""
    for leaves_first in (True, False):
        async with rig(ScriptedBackend(slots=1)) as r:
            r.play(r.request("running"))
            running = await r.backend.got(0)
            client, task = r.play(r.request("second"))
            await r.recorder.until(lambda: r.dispatcher.num_waiting == 1, "one in the queue")
            if leaves_first:
                client.leave()
                running.end()
            else:
                running.end()
                client.leave()
            await task
            assert r.backend.ids == (["running"] if leaves_first else ["running", "second"])
            number = len(r.backend.ids)
            third, task = r.play(r.request("third"))
            (await r.backend.got(number)).end()
            await task
            assert third.complete
        assert r.recorder.ends("second") == [(Outcome.CANCELLED, "client_gone")]


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_first_token_stops_the_engine(stream: bool) -> None:
    @virtual
    async def run() -> None:
        async with rig(ScriptedBackend(slots=1)) as r:
            client, task = r.play(r.request("gone", stream=stream))
            await r.backend.got(0)
            second, second_task = r.play(r.request("next"))
            client.leave()
            await r.backend.cancelled(r.backend.streams[0])
            await task
            # The slot is the engine's to give: as soon as it does, the next one runs.
            (await r.backend.got(1)).end()
            await second_task
            assert second.complete
        assert r.recorder.ends("gone") == [(Outcome.CANCELLED, "client_gone")]

    run()


@virtual
async def test_leaving_in_the_middle_counts_what_was_spent() -> None:
    async with rig() as r:
        client, task = r.play(r.request("gone"))
        stream = await r.backend.got(0)
        stream.say("a", "b", "c")
        await r.backend.pulled(stream, 3)
        client.leave()
        await task
        record = await r.recorder.ended("gone")
        assert stream.cancelled
    assert (record.outcome, record.usage.completion_tokens) == (Outcome.CANCELLED, 3)


@virtual
async def test_leaving_before_the_last_write_is_no_completion() -> None:
    """The engine is done, but the client that could not be written to is gone."""
    async with rig() as r:
        client, task = r.play(r.request("gone", stream=False))
        client.gate.clear()
        (await r.backend.got(0)).end()
        await r.backend.pulled(r.backend.streams[0], 1)
        client.leave()
        client.gate.set()
        await task
    assert r.recorder.ends("gone") == [(Outcome.CANCELLED, "client_gone")]


@virtual
async def test_news_after_the_end_changes_nothing() -> None:
    async with rig(ScriptedBackend(on_open=answer("a"))) as r:
        client, task = r.play(r.request("one"))
        await task
        client.leave()
        assert client.handle is not None
        client.handle.fail(BackendError("x"))
        client.handle.cut()
        client.handle.preempt()
        await asyncio.sleep(1000)
    assert r.recorder.ends("one") == [(Outcome.COMPLETED, "stop")]


@virtual
async def test_a_block_left_without_an_end_is_a_cancellation() -> None:
    async with rig() as r:
        request = r.request("left")
        with r.runtime.submit(request, await r.runtime.admit(request)):
            pass
        assert r.backend.streams[0].cancelled
    assert r.recorder.ends("left") == [(Outcome.CANCELLED, "client_gone")]


# ---- errors of the engine


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no"),
        ContextLengthExceeded("long"),
        BackendError("x"),
        BackendCrashed("x"),
        BackendProtocolError("x"),
        BackendUnavailable("later", retry_after_s=3),
    ],
)
def test_an_engines_error_ends_the_request(error: LLMRuntimeError, after_commit: bool) -> None:
    @virtual
    async def run() -> None:
        def speak(stream: ScriptedStream) -> None:
            if after_commit:
                stream.say("a")
            stream.fail(error)

        async with rig(ScriptedBackend(on_open=speak)) as r:
            client, task = r.play(r.request("one"))
            await task
        assert client.error is error
        assert len(client.received) == int(after_commit)
        assert r.recorder.ends("one") == [(Outcome.FAILED, error.reason)]
        assert r.backend.ids == ["one"]

    run()


@virtual
async def test_a_crash_in_our_own_code_is_a_failure_and_frees_the_slot() -> None:
    async with rig() as r:
        request = r.request("one")
        permit = await r.runtime.admit(request)
        with pytest.raises(ZeroDivisionError), r.runtime.submit(request, permit):
            _ = 1 / 0
        assert r.backend.streams[0].cancelled
    assert r.recorder.ends("one") == [(Outcome.FAILED, "internal_error")]


@virtual
async def test_a_cancelled_task_is_a_stopped_server() -> None:
    async with rig() as r:
        _, task = r.play(r.request("one"))
        await r.backend.got(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert r.recorder.ends("one") == [(Outcome.CANCELLED, "server_stopped")]


@virtual
async def test_a_gate_that_refuses_leaves_nothing_behind() -> None:
    class Closed:
        name = "closed"

        def reserve(self, *_: object) -> None:
            raise QueueFull("full")

    for gates in ({"identity": [Closed()]}, {"capacity": [Closed()]}):
        async with rig(**gates) as r:  # type: ignore[arg-type]
            client, task = r.play(r.request("one"))
            await task
            assert isinstance(client.error, QueueFull)
            assert [request.id for request, _ in r.recorder.rejections] == ["one"]
            assert r.runtime.num_active == 0
        assert r.recorder.records == []
