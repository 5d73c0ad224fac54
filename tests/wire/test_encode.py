from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.encode import ChunkEncoder, PlainChoice
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay
from tests.wire.sdk import read_stream, texts, validate_body, validate_chunk

KINDS = [EndpointKind.CHAT, EndpointKind.COMPLETIONS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream(kind: EndpointKind, include_usage: bool) -> None:
    encoder = ChunkEncoder(kind, 'i"d', 5, "mödel", include_usage=include_usage)
    pieces = ["Say ", '"你好"\n', "", "\\ 😀"]
    stream = b"".join(
        [
            *(encoder.role(index) for index in (0, 1)),
            *(encoder.delta(index, piece) for piece in pieces for index in (0, 1)),
            encoder.finish(1, "length"),
            encoder.finish(0, "stop"),
            encoder.usage(Usage(3, 8, 1)),
            encoder.done(),
        ]
    )
    events = read_stream(stream)
    for event in events:
        validate_chunk(kind, event)
        assert (event["id"], event["created"], event["model"]) == ('i"d', 5, "mödel")
        assert ("usage" in event) is include_usage
    if include_usage:
        usage = events.pop()
        assert usage["choices"] == []
        assert usage["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 8,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        assert all(event["usage"] is None for event in events)
    member = "content" if kind is EndpointKind.CHAT else "text"
    assert {index: read[member] for index, read in texts(events).items()} == dict.fromkeys(
        (0, 1), "".join(pieces)
    )
    assert [e["choices"][0]["finish_reason"] for e in events[-2:]] == ["length", "stop"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_usage", [False, True])
def test_what_it_writes_needs_no_change_by_the_relay(kind: EndpointKind, include_usage: bool) -> None:
    encoder = ChunkEncoder(kind, "id", 5, "m", include_usage=include_usage)
    stream = encoder.role() + encoder.delta(0, "a") + encoder.delta(0, "b") + encoder.finish(0, "stop")
    stream += encoder.usage(Usage(1, 2)) + encoder.done()
    relay = StreamRelay(RelayOptions(kind=kind, id="x", created=1, model="m", include_usage=include_usage))
    assert relay.feed(stream) == stream


@pytest.mark.parametrize("kind", KINDS)
def test_a_body(kind: EndpointKind) -> None:
    encoder = ChunkEncoder(kind, "id", 5, "m")
    body = validate_body(
        kind, encoder.body([PlainChoice("a", "stop"), PlainChoice("", "length")], Usage(2, 3))
    )
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    first = body["choices"][0]
    assert (first["message"]["content"] if kind is EndpointKind.CHAT else first["text"]) == "a"
    assert body["usage"]["total_tokens"] == 5


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    event = ChunkEncoder(EndpointKind.CHAT, "id", 5, "m").delta(0, text)
    (read,) = read_stream(event + b"data: [DONE]\n\n")
    assert read["choices"][0]["delta"]["content"] == text
