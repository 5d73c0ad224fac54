"""F32, F55 a: which limits end what, and that one upstream that hangs concerns no other."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.openai.upstreams import Answer, fake_upstream, gateway, send_stream
from tests.engines.upstream.stubs import Peer
from tests.field.fleet import THRESHOLD, Fleet, fleet, hangs
from tests.support.http import chat_body, connected, post
from tests.wire.builders import DONE, ROLE, STOP, text

WHOLE = "Blue whales sing."
A, B = "openai-0", "openai-1"


async def test_f32_a_a_healthy_stream_outlives_the_request_limit() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, whole=False)
        for number in range(20):
            await peer.send(b"%x\r\n%b\r\n" % (len(text(str(number % 10))), text(str(number % 10))))
            await asyncio.sleep(0.05)
        rest = STOP + DONE
        await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))

    settings = {"limits.request_timeout_s": "0.5", "limits.stream_idle_timeout_s": "0.4"}
    async with fleet(answer, settings=settings) as f:
        stream = await f.streamed()
        assert stream.done
        assert len(stream.text) == 20


async def slow_headers(peer: Peer, request: bytes) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nx-pad: " + b"x" * 1000:
        await peer.send(bytes([byte]))
        await asyncio.sleep(0.02)


async def five_tokens(peer: Peer, request: bytes) -> None:
    await send_stream(peer, ROLE, *(text("t") for _ in range(5)), whole=False)
    await peer.closed()


LIMITS = {"limits.request_timeout_s": "0.5", "limits.stream_idle_timeout_s": "0.5"}


@pytest.mark.parametrize(
    ("answer", "stream"),
    [(hangs, True), (hangs, False), (slow_headers, True), (slow_headers, False)],
    ids=["b, d stream", "d, f plain", "e stream", "e plain"],
)
async def test_f32_b_d_e_f_nothing_in_time_is_a_504_and_the_other_is_not_affected(
    answer: Answer, stream: bool
) -> None:
    closed = asyncio.Event()

    async def then_closed(peer: Peer, request: bytes) -> None:
        try:
            await answer(peer, request)
        finally:
            closed.set()

    async with fleet(then_closed, settings=LIMITS) as f:
        hung = asyncio.create_task(f.ask(stream=stream))
        await f.served.recorder.until(lambda: bool(f.served.recorder.dispatches), "it hangs")
        f.served.runtime.pools[0].dispatcher.replicas[B].num_slots += 9  # now the second is preferred
        for _ in range(3):
            assert await f.text(stream=stream) == WHOLE
        got = await hung
        assert (got.status, got.error["code"]) == (504, "deadline_exceeded")
        assert f.calls == (1, 3), "who ran out of time is not tried again"
        if answer is hangs:
            async with asyncio.timeout(5):
                await closed.wait()


async def test_f32_c_silence_after_tokens_is_an_error_event() -> None:
    async with fleet(five_tokens, settings=LIMITS) as f:
        stream = await f.streamed()
        assert stream.text == "ttttt"
        assert stream.error is not None
        assert stream.error["code"] == "deadline_exceeded"


async def test_f32_g_time_in_the_queue_has_its_own_limit_and_error() -> None:
    settings = {"engines.native_backend_concurrency": "1", "limits.queue_timeout_s": "0.2"}
    async with fake_upstream(hangs) as fake, gateway(fake, settings) as served:
        async with connected(served.port) as first:
            await first.send(post(chat_body("m")))
            await served.recorder.until(lambda: bool(served.recorder.dispatches), "the first runs")
            got = await Fleet(fake, fake, served).ask()
            assert (got.status, got.error["code"]) == (503, "queue_timeout")
            assert len(fake.asked) == 1, "the engine never sees it"
        await served.at_rest()


async def test_f55_a_an_upstream_that_hangs_with_good_health_leaves_the_rotation() -> None:
    """Its /health and its list are fine; completions hang."""
    settings = {**THRESHOLD, "limits.request_timeout_s": "0.1", "routing.breaker_silence_s": "0.05"}
    async with fleet(hangs, settings=settings) as f:
        for number in range(3):
            assert (await f.ask(stream=number == 1)).status == 504
        assert await f.breaker(A) == "open"
        for _ in range(3):
            assert await f.text(stream=False) == WHOLE
        assert f.calls == (3, 3)
