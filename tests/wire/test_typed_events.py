"""Responses and Messages streams on their way through."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    LLMRuntimeError,
    UpstreamRefused,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.typed_events import TypedEventRelay
from tests.wire.typed_streams import (
    MESSAGE,
    MESSAGE_HEAD,
    RESPONSE,
    RESPONSE_HEAD,
    RESPONSE_USAGE,
    message_delta,
    response,
    response_delta,
    typed,
)

STREAMS = {EndpointKind.RESPONSES: RESPONSE, EndpointKind.MESSAGES: MESSAGE}
HEADS = {EndpointKind.RESPONSES: RESPONSE_HEAD, EndpointKind.MESSAGES: MESSAGE_HEAD}
DELTAS = {EndpointKind.RESPONSES: response_delta("x"), EndpointKind.MESSAGES: message_delta("x")}
BOTH = pytest.mark.parametrize("kind", STREAMS)


def relay(kind: EndpointKind, model: str = "m") -> TypedEventRelay:
    return TypedEventRelay(RelayOptions(kind=kind, id="x", created=1, model=model, prompt_tokens_estimate=20))


def run(reader: TypedEventRelay, *reads: bytes) -> bytes:
    out = b"".join(map(reader.feed, reads))
    return out if reader.done else out + reader.eof()


@BOTH
def test_events_go_on_as_read(kind: EndpointKind) -> None:
    reader = relay(kind)
    for event in STREAMS[kind]:
        assert reader.feed(event) == event
        assert reader.has_token == (b'"Blue "' in event or b'"whales"' in event)
    assert reader.done
    assert not reader.failed
    assert reader.usage == Usage(11, 3, 4)
    assert reader.spent() == Usage(11, 3, 4)


def test_finish_reasons() -> None:
    for kind, reason in ((EndpointKind.RESPONSES, "stop"), (EndpointKind.MESSAGES, "max_tokens")):
        reader = relay(kind)
        run(reader, *STREAMS[kind])
        assert reader.finish_reason == reason


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({}, "incomplete"),
    ],
)
def test_an_incomplete_response_is_an_end(details: dict[str, Any], reason: str) -> None:
    reader = relay(EndpointKind.RESPONSES)
    last = typed(
        "response.incomplete",
        response=response("incomplete", incomplete_details=details, usage=RESPONSE_USAGE),
    )
    assert run(reader, *RESPONSE_HEAD, last).endswith(last)
    assert (reader.finish_reason, reader.failed, reader.usage) == (reason, False, Usage(11, 3, 4))


def test_a_failed_response_is_passed_on_and_known_as_failed() -> None:
    reader = relay(EndpointKind.RESPONSES)
    error = {"code": "server_error", "message": "boom at http://10.0.0.1:80/x"}
    out = run(reader, *RESPONSE_HEAD, typed("response.failed", response=response("failed", error=error)))
    assert reader.done
    assert reader.failed
    assert b"response.failed" in out
    assert b"10.0.0.1" not in out


@BOTH
@given(data=st.data())
def test_output_does_not_depend_on_how_the_input_was_cut(kind: EndpointKind, data: st.DataObject) -> None:
    whole = b"".join(STREAMS[kind]).replace(b"whales", "wh😀les".encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    reads = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert run(relay(kind), *reads) == whole


@BOTH
def test_line_ends_and_comments(kind: EndpointKind) -> None:
    whole = b"".join(STREAMS[kind])
    dressed = b": hi\r\n\r\n" + whole.replace(b"\n", b"\r\n")
    assert run(relay(kind), dressed) == whole


@BOTH
def test_the_engines_name_of_the_model_is_not_shown(kind: EndpointKind) -> None:
    out = run(relay(kind, model="shown"), *STREAMS[kind])
    events = [event for event in out.split(b"\n\n") if event]
    assert len(events) == len(STREAMS[kind])
    for event, original in zip(events, STREAMS[kind], strict=True):
        head, _, data = event.partition(b"\ndata: ")
        parsed, before = orjson.loads(data), orjson.loads(original.partition(b"\ndata: ")[2])
        assert head == b"event: " + parsed["type"].encode()
        for holder in (parsed.get("response"), parsed.get("message")):
            if holder is not None:
                assert holder.pop("model") == "shown"
        for holder in (before.get("response"), before.get("message")):
            if holder is not None:
                del holder["model"]
        assert parsed == before


@BOTH
def test_a_stream_without_its_end_is_cut(kind: EndpointKind) -> None:
    reader = relay(kind)
    out = b"".join(map(reader.feed, STREAMS[kind][:-1]))
    assert out == b"".join(STREAMS[kind][:-1])
    with pytest.raises(BackendError) as caught:
        reader.eof()
    assert caught.value.reason == "backend_stream_truncated"
    assert not reader.done
    assert reader.spent().estimated
    assert reader.spent().completion_tokens >= 2


@BOTH
def test_done_in_the_middle_is_a_cut_and_at_the_end_nothing(kind: EndpointKind) -> None:
    reader = relay(kind)
    assert run(reader, *STREAMS[kind], b"data: [DONE]\n\n") == b"".join(STREAMS[kind])
    with pytest.raises(BackendError):
        run(relay(kind), *HEADS[kind], b"data: [DONE]\n\n")


@BOTH
def test_half_an_event_at_the_end(kind: EndpointKind) -> None:
    reader = relay(kind)
    reader.feed(STREAMS[kind][0] + DELTAS[kind][:-20])
    with pytest.raises(BackendError) as caught:
        reader.eof()
    assert caught.value.reason == "backend_stream_truncated"


@BOTH
def test_the_last_event_may_lack_its_blank_line(kind: EndpointKind) -> None:
    whole = b"".join(STREAMS[kind])
    assert run(relay(kind), whole[:-2]) == whole


@BOTH
def test_nothing_after_the_end(kind: EndpointKind) -> None:
    reader = relay(kind)
    assert run(reader, b"".join(STREAMS[kind]) + DELTAS[kind]) == b"".join(STREAMS[kind])


ERRORS = [
    (EndpointKind.RESPONSES, typed("error", code="server_error", message="no http://h/", param=None)),
    (EndpointKind.RESPONSES, b'data: {"error":{"message":"no http://h/","code":500}}\n\n'),
    (EndpointKind.MESSAGES, typed("error", error={"type": "api_error", "message": "no http://h/"})),
]


@pytest.mark.parametrize(("kind", "event"), ERRORS)
def test_an_error_event_ends_it(kind: EndpointKind, event: bytes) -> None:
    reader = relay(kind)
    sent = HEADS[kind][0] + DELTAS[kind]
    assert reader.feed(sent + event) == sent, "what came before it is sent"
    with pytest.raises(BackendError) as caught:
        reader.feed(b"")
    assert "http://" not in caught.value.message
    with pytest.raises(BackendError):
        reader.eof()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("overloaded_error", BackendUnavailable),
        ("rate_limit_error", BackendUnavailable),
        ("invalid_request_error", InvalidRequest),
        ("authentication_error", UpstreamRefused),
        ("unheard_of", BackendError),
    ],
)
def test_the_first_event_may_be_a_refusal(said: str, kind: type[LLMRuntimeError]) -> None:
    refused = typed("error", error={"type": said, "message": "no"})
    with pytest.raises(kind) as caught:
        relay(EndpointKind.MESSAGES).feed(refused)
    assert type(caught.value) is kind
    reader = relay(EndpointKind.MESSAGES)
    reader.feed(MESSAGE_HEAD[0] + message_delta("x"))
    with pytest.raises(BackendError) as late:
        reader.feed(refused)
    assert type(late.value) is BackendError, "half an answer is out: trying elsewhere would repeat it"


@BOTH
@pytest.mark.parametrize(
    "page", [b"<html>\n\n", b'{"id":"x"}\n\n', b'event: x\ndata: {"a"\n\n', b"data: 7\n\n"]
)
def test_what_is_no_such_stream(kind: EndpointKind, page: bytes) -> None:
    with pytest.raises(BackendProtocolError):
        run(relay(kind), page)


@BOTH
def test_bad_utf8_is_mended(kind: EndpointKind) -> None:
    broken = DELTAS[kind].replace(b'"x"', b'"\xff"')
    out = relay(kind).feed(broken)
    assert orjson.loads(out.partition(b"\ndata: ")[2])["type"]
    assert "\ufffd" in out.decode()


def test_tokens_of_every_sort() -> None:
    for event, is_token in (
        (typed("response.function_call_arguments.delta", delta='{"a'), True),
        (typed("response.reasoning_summary_text.delta", delta="hm"), True),
        (typed("response.output_text.delta", delta=""), False),
        (typed("response.output_item.added", item={}), False),
    ):
        reader = relay(EndpointKind.RESPONSES)
        reader.feed(event)
        assert reader.has_token is is_token
    for delta, is_token in (
        ({"type": "input_json_delta", "partial_json": "{"}, True),
        ({"type": "thinking_delta", "thinking": "hm"}, True),
        ({"type": "signature_delta", "signature": "abc"}, False),
    ):
        reader = relay(EndpointKind.MESSAGES)
        reader.feed(typed("content_block_delta", index=0, delta=delta))
        assert reader.has_token is is_token


def test_estimates_before_the_end() -> None:
    reader = relay(EndpointKind.RESPONSES)
    assert reader.spent() == Usage(20, 0, 0, estimated=True)
    assert reader.usage is None
    reader.feed(b"".join(RESPONSE_HEAD) + response_delta("a") + response_delta("b"))
    assert reader.spent() == Usage(20, 2, 0, estimated=True)
    reader = relay(EndpointKind.MESSAGES)
    reader.feed(b"".join(MESSAGE_HEAD) + message_delta("a"))
    assert reader.spent() == Usage(11, 1, 4, estimated=True)
