"""F29, F31: what is tried again and where, and what counts against an upstream."""

from __future__ import annotations

import pytest

from tests.engines.openai.upstreams import (
    REPLY,
    Answer,
    fake_upstream,
    gateway,
    reply,
    send_stream,
    sing,
)
from tests.engines.upstream.stubs import Peer
from tests.field.fleet import THRESHOLD, Fleet, answers, fleet, hangs, resets, status
from tests.support.http import chat_body, connected, get, post
from tests.wire.builders import ROLE, text

WHOLE = "Blue whales sing."
A, B = "openai-0", "openai-1"


async def dispatched(f: Fleet, times: int) -> None:
    recorder = f.served.recorder
    await recorder.until(lambda: len(recorder.dispatches) >= times, f"{times} dispatches")


# ---- F29: retry after the first byte replays text


@pytest.mark.parametrize("events", [(ROLE, text("Blue "), text("wh")), (ROLE,)], ids=["a", "b"])
async def test_f29_a_b_after_the_first_event_nothing_is_tried_again(events: tuple[bytes, ...]) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *events, whole=False)
        peer.reset()

    async with fleet(answer) as f:
        stream = await f.streamed()
        assert f.calls == (1, 0)
        assert stream.text == ("Blue wh" if len(events) == 3 else "")
        assert stream.error is not None
        await f.served.settled(1)
        assert f.served.recorder.attempts == [(A, "failed", False)]


@pytest.mark.parametrize("stream", [False, True])
async def test_f29_c_a_failure_before_any_byte_is_tried_once_on_the_other(stream: bool) -> None:
    async with fleet(resets) as f:
        assert await f.text(stream=stream) == WHOLE
        # The connection was open since the look at its health: once on it, once on a fresh one.
        assert f.calls == (2, 1)
        await f.served.settled(1)
        assert f.served.recorder.attempts == [(A, "failed", True), (B, "answered", False)]
        assert len(f.served.recorder.records) == 1, "accounted once"
        assert await f.metric("llm_runtime_attempts_total", replica=A, result="failed", retried="yes") == 1
        assert await f.metric("llm_runtime_attempts_total", replica=B, result="answered") == 1


async def test_f29_d_half_a_plain_body_is_tried_once_on_the_other() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY)[:-40])
        peer.reset()

    async with fleet(answer) as f:
        assert await f.text(stream=False) == WHOLE
        assert f.calls == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_f29_e_retries_switched_off_for_the_request(stream: bool) -> None:
    async with fleet(resets) as f:
        got = await f.ask(stream=stream, headers={"x-max-attempts": "1"})
        assert got.status == 502
        assert f.calls == (1, 0), "not even on a fresh connection"
        for odd in ("0", "-1", "none", "1.0", ""):
            refused = await f.ask(headers={"x-max-attempts": odd or " "})
            assert refused.status == 400
            assert refused.error["param"] == "x-max-attempts"


async def test_f29_never_more_attempts_than_configured_over_all_layers() -> None:
    """A connection that was open and is closed under the request is tried again on a fresh one: that
    counts as well."""
    for most, calls in (("1", (1, 0)), ("2", (2, 0)), ("3", (2, 1)), ("9", (2, 2))):
        async with fleet(resets, resets, {"routing.max_attempts": most}) as f:
            assert (await f.ask(stream=most == "2")).status == 502
            assert f.calls == calls


async def test_f29_the_operator_can_forbid_it() -> None:
    async with fleet(resets, settings={"routing.retry_unanswered": "false"}) as f:
        assert (await f.ask()).status == 502
        assert f.calls[1] == 0
    async with fleet(answers(status("500 Oops")), settings={"routing.retry_share": "0"}) as f:
        assert (await f.ask()).status == 502
        assert f.calls == (1, 0)


# ---- F31: breaker and failover count the wrong things

CLIENT_FAULTS = ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found",
                 "413 Content Too Large", "422 Unprocessable Content"]  # fmt: skip


@pytest.mark.parametrize("line", CLIENT_FAULTS)
async def test_f31_a_b_client_faults_keep_their_status_and_the_breaker_closed(line: str) -> None:
    bad = True

    async def answer(peer: Peer, request: bytes) -> None:
        await (peer.send(status(line)) if bad else sing(peer, request))

    async with fleet(answer, settings=THRESHOLD) as f:
        for number in range(10):
            got = await f.ask(stream=number % 2 == 1)
            assert got.status == int(line[:3])
        assert f.calls == (10, 0), "no retry"
        assert await f.breaker(A) == "closed"
        bad = False
        assert await f.text(stream=False) == WHOLE
        assert f.calls == (11, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_f31_c_a_throttled_upstream_rests_and_the_other_serves(stream: bool) -> None:
    async with fleet(answers(status("429 Too Many Requests", retry_after="5")), settings=THRESHOLD) as f:
        for _ in range(10):
            assert await f.text(stream=stream) == WHOLE
        assert f.calls == (1, 10), "it is asked once, then left to rest"
        assert await f.metric("llm_runtime_replica_resting", replica=A) == 1
        assert await f.breaker(A) == "closed"
        assert await f.metric("llm_runtime_attempts_total", replica=A, result="busy") == 1


async def test_f31_c_alone_it_is_passed_on_with_its_time() -> None:
    async with (
        fake_upstream(answers(status("429 Too Many Requests", retry_after="5"))) as fake,
        gateway(fake, THRESHOLD) as served,
    ):
        f = Fleet(fake, fake, served)
        for _ in range(5):
            got = await f.ask()
            assert (got.status, got.headers["retry-after"]) == (429, "5")
        assert len(fake.asked) == 5


async def test_f31_c_when_both_are_throttled_the_client_is_told_when() -> None:
    throttled = answers(status("429 Too Many Requests", retry_after="5"))
    async with fleet(throttled, throttled, THRESHOLD) as f:
        for _ in range(3):
            got = await f.ask()
            assert (got.status, got.headers["retry-after"]) == (429, "5")


async def test_f31_d_refused_connections_are_failures_and_the_other_serves() -> None:
    settings = {
        **THRESHOLD,
        "engines.openai.health_interval_s": "60",
        "engines.openai.max_health_misses": "99",
    }
    async with fleet(sing, settings=settings) as f:
        await f.first.server.stop_listening()
        for _ in range(5):
            assert await f.text(stream=True) == WHOLE
        assert f.calls == (0, 5)
        assert await f.breaker(A) == "open"
        attempts = f.served.recorder.attempts
        assert attempts.count((A, "failed", True)) == 3, "no more are sent to it once it is open"


FAILURES: list[tuple[str, Answer]] = [
    ("e 500", answers(status("500 Internal Server Error"))),
    ("e 502", answers(status("502 Bad Gateway"))),
    ("e 504", answers(status("504 Gateway Timeout"))),
    ("e 503", answers(reply(b"<html>down</html>", "503 Service Unavailable", "text/html"))),
    ("g garbage", answers(b"SSH-2.0-OpenSSH_9.2p1\r\n")),
    ("g html", answers(reply(b"<html></html>", "200 OK", "text/html"))),
]


@pytest.mark.parametrize(("name", "answer"), FAILURES, ids=[name for name, _ in FAILURES])
@pytest.mark.parametrize("stream", [False, True])
async def test_f31_e_g_failures_are_counted_and_tried_on_the_other(
    name: str, answer: Answer, stream: bool
) -> None:
    async with fleet(answer, settings=THRESHOLD) as f:
        for _ in range(6):
            assert await f.text(stream=stream) == WHOLE
        assert f.calls == (3, 6), "opened at the third"
        assert await f.breaker(A) == "open"
        assert (await get(f.served.port, "/health/ready")).status == 200
        load = (await get(f.served.port, "/load")).body.decode()
        assert "127.0.0.1" not in load


async def test_f31_g_a_name_that_does_not_resolve() -> None:
    async with fake_upstream() as b:
        url = f"http://no-such-host.invalid:1/v1, {b.url}"
        async with gateway(b, {**THRESHOLD, "engines.openai.url": url}) as served:
            f = Fleet(b, b, served)
            for _ in range(3):
                assert await f.text(stream=False) == WHOLE


async def test_f31_f_clients_that_leave_say_nothing_of_the_upstream() -> None:
    async with fleet(hangs, settings={**THRESHOLD, "routing.breaker_silence_s": "0.001"}) as f:
        for number in range(10):
            async with connected(f.served.port) as client:
                await client.send(post(chat_body("m", stream=number % 2 == 1)))
                await dispatched(f, number + 1)
            await f.served.settled(number + 1)
        assert await f.breaker(A) == "closed"
        assert {result for _, result, _ in f.served.recorder.attempts} == {"left"}


async def test_f31_h_back_pressure_is_no_death_and_requests_flow_again_at_once() -> None:
    busy = True

    async def answer(peer: Peer, request: bytes) -> None:
        await (peer.send(status("503 Busy", retry_after="1")) if busy else sing(peer, request))

    async with fake_upstream(answer) as fake, gateway(fake, THRESHOLD) as served:
        f = Fleet(fake, fake, served)
        for _ in range(10):
            got = await f.ask()
            assert (got.status, got.headers["retry-after"]) == (503, "1")
        assert await f.breaker(A) == "closed"
        busy = False
        assert await f.text(stream=True) == WHOLE


async def test_f31_h_an_upstream_that_says_in_words_that_it_is_full() -> None:
    full = reply({"error": {"message": "queue full", "code": "queue_full"}}, "503 Service Unavailable")
    async with fake_upstream(answers(full)) as fake, gateway(fake, THRESHOLD) as served:
        f = Fleet(fake, fake, served)
        for _ in range(5):
            assert (await f.ask()).status == 503
        assert await f.breaker(A) == "closed"


async def test_f31_i_client_faults_between_do_not_wipe_out_the_failures() -> None:
    number = 0

    async def answer(peer: Peer, request: bytes) -> None:
        nonlocal number
        number += 1
        await peer.send(status("500 Oops" if number % 2 else "400 Bad Request"))

    async with fleet(answer, settings=THRESHOLD) as f:
        seen = [(await f.ask()).status for _ in range(5)]
        assert seen == [200, 400, 200, 400, 200]
        assert await f.breaker(A) == "open"


async def test_f31_all_open_is_a_503_at_once_with_the_time_of_the_next_try() -> None:
    failing = answers(status("500 Oops"))
    async with fleet(failing, failing, THRESHOLD) as f:
        for _ in range(3):
            assert (await f.ask()).status == 502
        assert (await f.breaker(A), await f.breaker(B)) == ("open", "open")
        calls = f.calls
        for stream in (False, True):
            got = await f.ask(stream=stream)
            assert got.status == 503
            assert 1 <= int(got.headers["retry-after"]) <= 30
        assert f.calls == calls
        ready = await get(f.served.port, "/health/ready")
        assert ready.status == 503
        assert "in a row" in ready.json()["reason"]
        assert (await get(f.served.port, "/health/live")).status == 200


async def test_f31_after_its_pause_one_request_tries_it_and_an_answer_closes_it() -> None:
    failing = True

    async def answer(peer: Peer, request: bytes) -> None:
        await (peer.send(status("500 Oops")) if failing else sing(peer, request))

    settings = {"routing.breaker_failures": "2", "routing.breaker_open_s": "0.05"}
    async with fake_upstream(answer) as fake, gateway(fake, settings) as served:
        f = Fleet(fake, fake, served)
        for _ in range(2):
            assert (await f.ask()).status == 502
        states = served.recorder.states
        await served.recorder.until(lambda: states[-1][1] == "ready", "the pause is over")
        assert [state for _, state, _ in states[-2:]] == ["crashed", "ready"]
        failing = False
        assert await f.text(stream=True) == WHOLE
        assert await f.breaker(A) == "closed"
