from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    LLMRuntimeError,
)
from llm_runtime.core.request import EndpointKind
from tests.wire.builders import DONE, ROLE, STOP, USAGE, drain, event, frame, relay, run, text
from tests.wire.sdk import texts


@pytest.mark.parametrize("said", ["abort", "error", "insufficient_system_resource", 7])
def test_an_unknown_finish_reason_is_a_failure_never_a_stop(said: Any) -> None:
    reader = relay()
    reader.feed(ROLE + text("a"))
    with pytest.raises(BackendError) as caught:
        reader.feed(event(finish=said))
    assert caught.value.reason == "backend_aborted"


def test_legacy_completions_know_fewer_reasons() -> None:
    reader = relay(kind=EndpointKind.COMPLETIONS)
    with pytest.raises(BackendError):
        reader.feed(frame({"choices": [{"index": 0, "text": "", "finish_reason": "tool_calls"}]}))


def test_a_second_finish_is_dropped() -> None:
    events = run(ROLE + text("a") + STOP + STOP + event(finish="length") + DONE)
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, "stop"]


def test_text_after_the_finish_is_a_failure_even_in_a_known_envelope() -> None:
    reader = relay()
    reader.feed(ROLE + text("a") + text("b") + STOP)
    with pytest.raises(BackendProtocolError):
        reader.feed(text("c"))


def test_one_choice_may_go_on_after_the_other_finished() -> None:
    stream = b"".join(event({"role": "assistant"}, index=i) + text("x", index=i) for i in (0, 1))
    stream += event(finish="stop", index=0) + text("y", index=1) + event(finish="length", index=1) + DONE
    events = run(stream, num_choices=2)
    assert {i: t["content"] for i, t in texts(events).items()} == {0: "x", 1: "xy"}


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        ROLE + text("a"),
        ROLE + text("a") + text("b")[:40],
        ROLE + text("a") + DONE,
        ROLE + text("a") + USAGE + DONE,
        ROLE + STOP[:-30],
        b": ping\n\n",
    ],
)
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_cut_stream_is_a_failure_without_end(stream: bytes, include_usage: bool) -> None:
    reader = relay(include_usage=include_usage)
    out: list[bytes] = []
    with pytest.raises(BackendError) as caught:
        drain(reader, stream, out)
    assert caught.value.reason == "backend_stream_truncated"
    assert not reader.done
    sent = b"".join(out)
    assert b"DONE" not in sent
    assert b'"finish_reason":"stop"' not in sent or STOP in stream
    assert sent == b"" or sent.endswith(b"\n\n")


def test_one_choice_of_two_is_a_cut_stream() -> None:
    reader = relay(num_choices=2)
    reader.feed(ROLE + STOP)
    with pytest.raises(BackendError):
        reader.feed(DONE)


def test_an_engine_that_forgets_done_or_the_last_blank_line_is_forgiven() -> None:
    assert len(run(ROLE + text("a") + STOP)) == 3
    assert len(run(ROLE + text("a") + STOP + b"data: [DONE]")) == 3
    assert len(run(ROLE + text("a") + STOP[:-2])) == 3


def test_nothing_follows_done() -> None:
    reader = relay()
    assert reader.feed(ROLE + STOP + DONE + text("x")).endswith(DONE)
    assert reader.feed(text("y")) == b""
    assert not reader.has_token
    assert reader.eof() == b""


def test_what_came_before_a_failure_is_delivered_first() -> None:
    reader = relay()
    out = reader.feed(ROLE + text("a") + frame({"error": {"message": "boom", "code": 500}}))
    assert out == ROLE + text("a")
    assert reader.has_token
    assert isinstance(reader.failure, BackendError)
    with pytest.raises(BackendError):
        reader.feed(text("b"))
    with pytest.raises(BackendError):
        reader.eof()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"code": 500, "message": "boom", "type": "server_error"}}, BackendError),
        ({"error": {"code": 400, "message": "bad", "type": "invalid_request_error"}}, InvalidRequest),
        (
            {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}},
            ContextLengthExceeded,
        ),
        ({"error": {"code": 503, "message": "loading"}}, BackendUnavailable),
        ({"error": "just a string"}, BackendError),
        (
            {"object": "error", "message": "vLLM of old", "type": "BadRequestError", "code": 400},
            InvalidRequest,
        ),
    ],
)
def test_error_events(body: dict[str, Any], expected: type[LLMRuntimeError]) -> None:
    with pytest.raises(expected) as first:
        relay().feed(frame(body))
    assert type(first.value) is expected
    late = relay()
    late.feed(ROLE + text("a"))
    with pytest.raises(BackendError) as caught:
        late.feed(frame(body))
    # With half an answer out, nothing is the client's fault or safe to try elsewhere.
    assert not isinstance(caught.value, BackendUnavailable)


def test_an_error_field_of_old_llama_cpp() -> None:
    with pytest.raises(BackendError, match="slot"):
        relay().feed(b'error: {"code":500,"message":"slot unavailable","type":"server_error"}\n\n')


@pytest.mark.parametrize(
    "stream",
    [
        b"<html><head></head><body>502 Bad Gateway nginx/1.2</body></html>\n",
        b"<!DOCTYPE html>\n\n<p>http://10.0.0.5:8000/</p>\n\n",
        b'data: {"choices":[\n\n',
        b"data: [1,2]\n\n",
        b"data: hello\n\n",
        frame({"choices": {}}),
        frame({"choices": [7]}),
    ],
)
def test_what_is_no_stream_of_chunks_is_a_protocol_error(stream: bytes) -> None:
    reader = relay()
    with pytest.raises(BackendProtocolError) as caught:
        drain(reader, stream, [])
    assert "nginx" not in caught.value.message
    assert "10.0.0.5" not in caught.value.message


def test_a_choice_nobody_asked_for() -> None:
    reader = relay(num_choices=2)
    with pytest.raises(BackendProtocolError):
        reader.feed(text("x", index=2))
    assert run(text("x", index=7) + event(finish="stop", index=8) + DONE)[0]["choices"][0]["index"] == 0
