from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import BackendProtocolError, NotAnEventStream
from llm_runtime.wire.sse import Mark, SseSplitter, event_data, read_event


def split(*reads: bytes) -> list[bytes]:
    splitter = SseSplitter()
    return [event for read in reads for event in splitter.feed(read)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    stream = b"data: a" + end * 2 + b": ping" + end * 2 + b"data: b" + end + b"data: c" + end * 2
    assert split(stream) == [b"data: a\n\n", b": ping\n\n", b"data: b\ndata: c\n\n"]


def test_line_ends_in_any_mix() -> None:
    assert split(b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n") == [
        b"data: a\n\n",
        b"data: b\n\n",
        b"data: c\n\n",
    ]


def test_further_blank_lines_are_no_events() -> None:
    assert split(b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n") == [b"data: a\n\n", b"data: b\n\n"]


def test_an_event_is_held_until_it_is_complete() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: \xe4") == []
    assert splitter.tail == b"data: \xe4"
    assert splitter.feed(b"\xbd\xa0\n") == []
    assert splitter.feed(b"\n") == ["data: 你\n\n".encode()]
    assert splitter.tail == b""


def test_flush_frames_what_is_left_once() -> None:
    splitter = SseSplitter()
    splitter.feed(b"data: a\n\ndata: b\n")
    assert splitter.flush() == b"data: b\n\n"
    assert splitter.flush() == b""


def test_an_endless_event_is_refused() -> None:
    splitter = SseSplitter(max_event_bytes=100)
    assert splitter.feed(b"data: " + b"x" * 500 + b"\n\n") != []
    splitter.feed(b"x" * 100)
    with pytest.raises(BackendProtocolError):
        splitter.feed(b"x")


@given(
    st.lists(
        st.lists(st.sampled_from([b"data: x", b"data:", b": c", "data: é\u2028".encode()]), min_size=1),
        max_size=6,
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_events_do_not_depend_on_the_reads(
    blocks: list[list[bytes]], end: bytes, data: st.DataObject
) -> None:
    stream = b"".join(b"".join(line + end for line in lines) + end for lines in blocks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [b"\n".join(lines) + b"\n\n" for lines in blocks]
    assert split(*reads) == split(*(bytes([byte]) for byte in stream)) == expected


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data:\n\n", b""),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: message\nid: 7\ndata: x\n: note\n\n", b"x"),
        (b": ping\n\n", None),
        (b"event: ping\n\n", None),
    ],
)
def test_event_data(event: bytes, data: bytes | None) -> None:
    assert event_data(event) == data


def test_read_event() -> None:
    assert read_event(b'data: {"a":1}\n\n') == {"a": 1}
    assert read_event(b"data: [DONE]\n\n") is Mark.END
    assert read_event(b"data: null\n\n") is None
    assert read_event(b": ping\n\n") is None
    assert read_event(b'error: {"message":"x"}\n\n') == {"error": {"message": "x"}}
    assert read_event(b'data: {"a":"\xe4\xbd"}\n\n') == {"a": "\ufffd"}


@pytest.mark.parametrize("event", [b'data: {"a":\n\n', b"data: [1]\n\n", b"data: x\n\n", b"data:\n\n"])
def test_nonsense_is_refused(event: bytes) -> None:
    with pytest.raises(BackendProtocolError):
        read_event(event)


@pytest.mark.parametrize("event", [b"<html><body>502</body></html>\n\n", b'{"choices":[]}\n\n'])
def test_what_is_no_event_stream_is_told_apart(event: bytes) -> None:
    with pytest.raises(NotAnEventStream):
        read_event(event)


@given(st.lists(st.sampled_from([b"\n", b"\n", b"\r", b"data: a", b"\n\n"]), max_size=20).map(b"".join))
def test_one_read_is_cut_as_many_are(stream: bytes) -> None:
    whole, parts = SseSplitter(), SseSplitter()
    bytewise = [event for byte in stream for event in parts.feed(bytes([byte]))]
    assert whole.feed(stream) == bytewise
    assert whole.flush() == parts.flush()
