"""The relay over streams nobody wrote down: any text, any envelope style, any cut into reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.assemble import ReplyAssembler
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay
from tests.wire.sdk import read_stream, texts, validate_body, validate_chunk

TOKENS = st.text(alphabet=st.sampled_from('ab "\\\n{}[]:,é你😀\u2028\x7fnu'), max_size=6)
MEMBERS = st.sampled_from(["content", "content", "content", "reasoning_content", "arguments"])


@dataclass(frozen=True)
class Style:
    """How an engine writes its events."""

    ascii_only: bool
    spaced: bool
    end: str
    ticking: bool
    new_ids: bool
    repeat_role: bool
    pings: bool

    def frame(self, body: Any) -> str:
        separators = (", ", ": ") if self.spaced else (",", ":")
        text = json.dumps(body, ensure_ascii=self.ascii_only, separators=separators)
        ping = f": ping{self.end * 2}" if self.pings else ""
        return f"{ping}data: {text}{self.end * 2}"


STYLES = st.builds(
    Style,
    ascii_only=st.booleans(),
    spaced=st.booleans(),
    end=st.sampled_from(["\n", "\n", "\r\n"]),
    ticking=st.booleans(),
    new_ids=st.booleans(),
    repeat_role=st.booleans(),
    pings=st.booleans(),
)


@dataclass(frozen=True)
class Case:
    kind: EndpointKind
    num_choices: int
    include_usage: bool
    stream: bytes
    expected: dict[int, dict[str, str]]

    def options(self) -> RelayOptions:
        return RelayOptions(
            kind=self.kind,
            id="ours",
            created=9,
            model="alias",
            include_usage=self.include_usage,
            num_choices=self.num_choices,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from([EndpointKind.CHAT, EndpointKind.COMPLETIONS]))
    style = draw(STYLES)
    num_choices = draw(st.integers(1, 3))
    pieces = draw(st.lists(st.tuples(st.integers(0, num_choices - 1), MEMBERS, TOKENS), max_size=25))
    expected: dict[int, dict[str, str]] = {index: {} for index in range(num_choices)}
    parts: list[str] = []
    for number, (index, drawn, token) in enumerate(pieces):
        member = drawn if kind is EndpointKind.CHAT else "text"
        one = choice(style, kind, index, member, token)
        if member == "arguments" and member not in expected[index]:
            one["delta"]["tool_calls"][0] |= {"id": f"call{index}", "type": "function"}
            one["delta"]["tool_calls"][0]["function"]["name"] = "f"
        expected[index][member] = expected[index].get(member, "") + token
        parts.append(style.frame(envelope(style, kind, number, one)))
    for index in range(num_choices):
        nothing: dict[str, Any] = {"text": "", "logprobs": None}
        if kind is EndpointKind.CHAT:
            nothing = {"delta": {}}
        last = {"index": index, "finish_reason": "stop", **nothing}
        parts.append(style.frame(envelope(style, kind, 99, last)))
    parts.append(f"data: [DONE]{style.end * 2}")
    return Case(kind, num_choices, draw(st.booleans()), "".join(parts).encode(), expected)


def choice(style: Style, kind: EndpointKind, index: int, member: str, token: str) -> dict[str, Any]:
    if kind is not EndpointKind.CHAT:
        return {"text": token, "index": index, "logprobs": None, "finish_reason": None}
    delta: dict[str, Any] = {"role": "assistant"} if style.repeat_role else {}
    if member == "arguments":
        delta["tool_calls"] = [{"index": 0, "function": {"arguments": token}}]
    else:
        delta[member] = token
    return {"index": index, "delta": delta, "finish_reason": None}


def envelope(style: Style, kind: EndpointKind, number: int, one: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"e{number}" if style.new_ids else "e",
        "object": "chat.completion.chunk" if kind is EndpointKind.CHAT else "text_completion",
        "created": 100 + number // 5 if style.ticking else 100,
        "model": "real",
        "choices": [one],
    }


def reads(data: st.DataObject, stream: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def client_view(events: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    view = texts(events)
    for event in events:
        for one in event["choices"]:
            for call in one.get("delta", {}).get("tool_calls", ()):
                members = view[one["index"]]
                members["arguments"] = members.get("arguments", "") + call["function"]["arguments"]
    return {index: {k: v for k, v in members.items() if v} for index, members in view.items()}


@given(cases(), st.data())
@settings(max_examples=150, deadline=None)
def test_output_does_not_depend_on_the_reads_and_keeps_every_text(case: Case, data: st.DataObject) -> None:
    whole = StreamRelay(case.options())
    out = whole.feed(case.stream)
    parts = StreamRelay(case.options())
    assert b"".join(parts.feed(read) for read in reads(data, case.stream)) == out
    bytewise = StreamRelay(case.options())
    assert b"".join(bytewise.feed(bytes([byte])) for byte in case.stream) == out
    assert whole.num_token_events == parts.num_token_events == bytewise.num_token_events
    assert whole.done
    assert parts.done

    events = read_stream(out)
    for event in events:
        validate_chunk(case.kind, event)
    role = {"role": "assistant"} if case.kind is EndpointKind.CHAT else {}
    expected = {i: {k: v for k, v in members.items() if v} | role for i, members in case.expected.items()}
    assert client_view(events) == expected
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events}) == 1


@given(cases(), st.data())
@settings(max_examples=100, deadline=None)
def test_has_token_says_whether_a_read_brought_text(case: Case, data: st.DataObject) -> None:
    relay = StreamRelay(case.options())
    for read in reads(data, case.stream):
        before = relay.num_token_events
        out = relay.feed(read)
        assert relay.has_token is (relay.num_token_events > before)
        assert not relay.has_token or out


@given(cases(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_cut_stream_never_looks_finished(case: Case, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(case.stream)))
    whole = StreamRelay(case.options()).feed(case.stream)
    relay = StreamRelay(case.options())
    out = b""
    try:
        for read in reads(data, case.stream[:cut]):
            out += relay.feed(read)
        out += relay.eof()
    except LLMRuntimeError:
        assert not relay.done
        assert b"[DONE]" not in out.split(b"\n")
        assert whole.startswith(out)
    else:
        assert relay.done
        assert out == whole


@given(cases(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_assembled_reply_says_what_the_stream_says(case: Case, data: st.DataObject) -> None:
    assembler = ReplyAssembler(case.options())
    for read in reads(data, case.stream):
        assembler.feed(read)
    assert assembler.done
    body = validate_body(case.kind, assembler.body())
    assert [one["index"] for one in body["choices"]] == list(range(case.num_choices))
    for one in body["choices"]:
        message = one.get("message", one)
        found = {name: message.get(name) or "" for name in ("content", "reasoning_content", "text")}
        calls = message.get("tool_calls") or [{"function": {"arguments": ""}}]
        found["arguments"] = calls[0]["function"]["arguments"]
        members = case.expected[one["index"]]
        assert found == {name: members.get(name, "") for name in found}


@given(st.binary(max_size=300), cases(), st.data())
@settings(max_examples=150, deadline=None)
def test_garbage_in_the_middle_raises_our_errors_only(junk: bytes, case: Case, data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(case.stream)))
    stream = case.stream[:where] + junk + case.stream[where:]
    relay = StreamRelay(case.options())
    try:
        out = relay.feed(stream) + relay.eof()
    except LLMRuntimeError as error:
        orjson.dumps(error.message)
    else:
        read_stream(out)
