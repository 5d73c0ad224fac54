"""What one stream teaches about the next changes nothing but its cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.wire.relay import StreamRelay
from llm_runtime.wire.shapes import MAX_OF_A_KIND, MAX_TRIES, Shapes
from tests.wire.builders import DONE, OPTIONS, changed, frame

CHUNK = "chat.completion.chunk"


def event(id: Any, created: Any, delta: Any, finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
    return frame({"id": id, "object": CHUNK, "created": created, "model": "m", "choices": [choice], **more})


def stream(id: str, created: int, *texts: str, last: str = "") -> list[bytes]:
    """As vLLM writes it. last: a text in the event that says why it ended."""
    delta = {"content": last} if last else {}
    return [
        event(id, created, {"role": "assistant", "content": ""}),
        *(event(id, created, {"content": text}) for text in texts),
        event(id, created, delta, "length", stop_reason=None),
        frame(
            {"id": id, "object": CHUNK, "created": created, "model": "m", "choices": [],
             "usage": {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}}
        ),
        DONE,
    ]  # fmt: skip


def told(reader: StreamRelay, reads: list[bytes]) -> tuple[Any, ...]:
    """All that anybody can see of a relay that reads these."""
    seen: list[Any] = []
    error = ""
    try:
        for read in reads:
            out = reader.feed(read)
            seen.append((out, reader.has_token, reader.done))
        seen.append(reader.eof())
    except LLMRuntimeError as found:
        error = f"{type(found).__name__}: {found.message}"
    failure = str(reader.failure)
    usage = (reader.usage, reader.num_token_events, reader.spent())
    return seen, error, failure, usage, reader.finish_reason, reader.progress


def test_the_second_stream_is_known_by_its_bytes() -> None:
    shapes = Shapes()
    StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join(stream("chat-1", 100, "a", "b", last="c")))
    role, text, finish, *_ = stream("chat-2", 200, "x", last="y")
    assert shapes.opening(role) == (b"chat-2", b"200")
    assert shapes.opening(text) is None
    envelopes = shapes.envelopes(b"chat-2", b"200")
    assert [each.finish_reason for each in envelopes] == [None, "length"]
    for known, raw in zip(envelopes, (text, finish), strict=True):
        assert known.as_read
        assert raw[len(known.prefix) : -len(known.suffix)] in (b"x", b"y")


def test_no_event_of_the_second_stream_is_learnt_anew() -> None:
    shapes = Shapes()
    StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join(stream("chat-1", 100, "a", "b", last="c")))
    reader = StreamRelay(changed(OPTIONS, shapes=shapes))
    role, text, finish, *_ = stream("chat-2", 200, "x", last="y")
    assert reader.feed(role) == role
    for event in (text, finish):
        known = reader._known(event)
        assert known is not None
        assert event[len(known.prefix) : -len(known.suffix)] in (b"x", b"y")


def test_nothing_is_kept_of_what_was_said() -> None:
    shapes = Shapes()
    for texts in (("secret",), ("secret", "secret"), ('se"cret',)):
        reads = stream("c1", 100, *texts, last="secret")
        odd = event("c1", 100, {"content": "secret", "reasoning": "secret"})
        StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join([reads[0], odd, *reads[1:]]))
    kept = b"".join(each.prefix + each.suffix for each in shapes.envelopes(b"i", b"1"))
    assert kept
    assert b"secret" not in kept


@pytest.mark.parametrize(
    "raw",
    [
        event("e 2", 200, {"role": "assistant", "content": ""}),
        event('e"2', 200, {"role": "assistant", "content": ""}),
        event("e2", -200, {"role": "assistant", "content": ""}),
        event("e2", "200", {"role": "assistant", "content": ""}),
        event("e2", 200.5, {"role": "assistant", "content": ""}),
        event("e2", 200, {"role": "assistant", "content": "text"}),
        event("e2", 200, {"role": "assistant", "content": ""}, "stop"),
        event("e2", 200, {"role": "assistant", "content": ""}).replace(b":200,", b":0200,"),
        event("", 200, {"role": "assistant", "content": ""}),
    ],
)
def test_what_is_not_quite_like_it_is_parsed(raw: bytes) -> None:
    shapes = Shapes()
    StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join(stream("e1", 100, "a")))
    assert shapes.opening(raw) is None
    follow = stream("e2", 200, "a")[1:]
    with_shapes = told(StreamRelay(changed(OPTIONS, shapes=shapes)), [raw, *follow])
    assert with_shapes == told(StreamRelay(OPTIONS), [raw, *follow])


def test_an_engine_that_never_writes_alike_is_not_learnt_from_for_ever() -> None:
    shapes = Shapes()
    for number in range(MAX_TRIES):
        raw = event("e1", 100, {"content": "a"}, number=number)
        shapes.learn(raw, orjson.loads(raw[6:]), has_token=True)
        assert len(shapes.envelopes(b"e", b"1")) <= MAX_OF_A_KIND
    opening = event("e1", 100, {"role": "assistant"})
    shapes.learn_opening(opening, orjson.loads(opening[6:]))
    assert shapes.opening(opening) is None


def test_an_engine_that_writes_alike_is_learnt_from_again_when_it_changes() -> None:
    shapes = Shapes()
    for number in range(5 * MAX_TRIES):
        reads = stream(f"e{number}", 100 + number, "a", "b")
        if number >= 4 * MAX_TRIES:
            reads[1:3] = [event(f"e{number}", 100 + number, {"content": "a"}, new=True)] * 2
        StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join(reads))
    assert any(b"new" in known.suffix for known in shapes.envelopes(b"e", b"1"))


IDS = st.sampled_from(["c-1", "c-2", "chatcmpl-0123", "1", "100", "m", "é", 'q"', "", "assistant", CHUNK])
TIMES = st.sampled_from([100, 200, 1, 0, -5, 12.0, True])
TEXTS = st.sampled_from(["a", " b", "é", 'q"', "\\", "\n", "c-1", "100", "length", "", "data: "])
DELTAS = st.one_of(
    st.fixed_dictionaries({"content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXTS}),
    st.fixed_dictionaries({"reasoning": TEXTS}),
    st.fixed_dictionaries({"content": TEXTS, "reasoning": TEXTS}),
    st.just({}),
    st.fixed_dictionaries({"tool_calls": st.just([{"index": 0, "function": {"arguments": "{"}}])}),
)
MORE_MEMBERS: list[dict[str, Any]] = [
    {}, {}, {}, {"x": "c-1"}, {"x": 100}, {"y": [100, 200]}, {"logprobs": {"content": []}}, {"usage": None},
    {"usage": {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}}, {"error": None},
    {"prompt_progress": {"total": 4, "cache": 1, "processed": 2}}, {"error": {"message": "no"}},
]  # fmt: skip
MORE = st.sampled_from(MORE_MEMBERS)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    id, created = draw(IDS), draw(TIMES)
    events: list[bytes] = []
    if draw(st.integers(0, 5)):
        events.append(event(id, created, {"role": "assistant", "content": ""}))
    for _ in range(draw(st.integers(0, 5))):
        other = draw(st.integers(0, 9)) == 0
        finish = draw(st.sampled_from([None, None, None, None, "stop", "eos", "length"]))
        raw = event("c-2" if other else id, created, draw(DELTAS), finish, **draw(MORE))
        events.append(raw.replace(b"\n\n", b"\r\n\r\n") if draw(st.integers(0, 9)) == 0 else raw)
        if draw(st.integers(0, 9)) == 0:
            events.append(b": ping\n\n")
    events.append(event(id, created, draw(DELTAS), draw(st.sampled_from(["stop", "length", "eos", None]))))
    if draw(st.booleans()):
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        events.append(frame({"id": id, "object": CHUNK, "created": created, "choices": [], "usage": usage}))
    return b"".join(events) + DONE


@given(st.lists(streams(), min_size=2, max_size=8), st.booleans(), st.data())
@settings(max_examples=400, deadline=None)
def test_streams_that_share_what_they_learnt_say_what_they_would_alone(
    all_streams: list[bytes], include_usage: bool, data: st.DataObject
) -> None:
    shapes = Shapes()
    for raw in (*all_streams, *all_streams):
        cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=4)))
        at_events = data.draw(st.booleans())
        reads = [each + b"\n\n" for each in raw.split(b"\n\n") if each]
        if not at_events:
            reads = [raw[start:end] for start, end in pairwise([0, *cuts, len(raw)])]
        options = changed(OPTIONS, include_usage=include_usage, strip_members=frozenset())
        alone, sharing = StreamRelay(options), StreamRelay(changed(options, shapes=shapes))
        assert told(sharing, reads) == told(alone, reads)


@pytest.mark.parametrize(
    ("raw", "other"),
    [
        ('{"x":"c-1","id":"c\\u002d1","created":100,%s}', '{"x":"c-2","id":"c\\u002d1","created":100,%s}'),
        ('{"id":"c-1","n":100,"created":1e2,%s}', '{"id":"c-1","n":200,"created":1e2,%s}'),
        ('{"id":"c-1","n":100,"created":100,%s}', '{"id":"c-1","n":200,"created":100,%s}'),
        ('{"id":"c-1","created":100,"created":100,%s}', '{"id":"c-1","created":200,"created":100,%s}'),
    ],
)
def test_what_only_looks_like_id_or_time_is_not_taken_for_it(raw: str, other: str) -> None:
    rest = (
        f'"object":"{CHUNK}","model":"m",'
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]'
    )
    shapes = Shapes()
    event = (raw % rest).encode()
    shapes.learn_opening(b"data: " + event + b"\n\n", orjson.loads(event))
    assert shapes.opening(b"data: " + (other % rest).encode() + b"\n\n") is None


def test_what_comes_behind_an_event_without_text_is_no_text() -> None:
    shapes = Shapes()
    nothing = [event(id, 100, {"content": ""}) for id in ("c1", "c2")]
    first = stream("c1", 100, "a")
    StreamRelay(changed(OPTIONS, shapes=shapes)).feed(b"".join([first[0], nothing[0], *first[1:]]))
    second = stream("c2", 100, "a")
    reads = [second[0], nothing[1], nothing[1] + b": pi", b"ng\n\n", *second[1:]]
    alone = told(StreamRelay(OPTIONS), reads)
    assert told(StreamRelay(changed(OPTIONS, shapes=shapes)), reads) == alone
