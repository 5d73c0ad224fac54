from __future__ import annotations

import timeit
from dataclasses import replace
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    LLMRuntimeError,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay
from tests.wire.scenarios import SCENARIOS, Scenario
from tests.wire.sdk import read_stream, texts, validate_chunk

OPTIONS = RelayOptions(kind=EndpointKind.CHAT, id="ours", created=1000, model="m")
DONE = b"data: [DONE]\n\n"


def event(delta: Any = None, finish: Any = None, index: int = 0, **members: Any) -> bytes:
    """An event in vLLM's shape."""
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return frame(
        {
            "id": "e1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": "m",
            "choices": [choice],
            **members,
        }
    )


def frame(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def text(content: str, **members: Any) -> bytes:
    return event({"content": content}, **members)


ROLE = event({"role": "assistant", "content": ""})
STOP = event(finish="stop")
USAGE = frame(
    {
        "id": "e1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
)


def relay(**changes: Any) -> StreamRelay:
    return StreamRelay(replace(OPTIONS, **changes))


def drain(reader: StreamRelay, stream: bytes, out: list[bytes]) -> None:
    out.append(reader.feed(stream))
    out.append(reader.eof())


def run(stream: bytes, **changes: Any) -> list[dict[str, Any]]:
    reader = relay(**changes)
    out = reader.feed(stream)
    if not reader.done:
        out += reader.eof()
    return read_stream(out)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("include_usage", [False, True])
class TestGolden:
    def output(self, scenario: Scenario, include_usage: bool) -> tuple[StreamRelay, bytes]:
        reader = StreamRelay(scenario.options(include_usage=include_usage))
        return reader, reader.feed(scenario.stream)

    def test_output_is_as_recorded(self, scenario: Scenario, include_usage: bool) -> None:
        reader, out = self.output(scenario, include_usage)
        suffix = "usage.out.sse" if include_usage else "out.sse"
        assert out == scenario.golden(suffix).read_bytes()
        assert reader.done
        assert reader.failure is None

    def test_every_event_satisfies_the_sdk(self, scenario: Scenario, include_usage: bool) -> None:
        _, out = self.output(scenario, include_usage)
        for chunk in read_stream(out):
            validate_chunk(scenario.kind, chunk)

    def test_the_envelope_is_constant_and_the_order_right(
        self, scenario: Scenario, include_usage: bool
    ) -> None:
        _, out = self.output(scenario, include_usage)
        events = read_stream(out)
        assert len({(e["id"], e["created"], e["object"], e["model"]) for e in events}) == 1
        assert events[0]["id"]
        assert events[0]["model"] == "alias"
        usage_event = events.pop() if include_usage else None
        if usage_event is not None:
            assert usage_event["choices"] == []
            usage = usage_event["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        for e in events:
            assert len(e["choices"]) == 1
            assert ("usage" in e) is include_usage
            assert e.get("usage") is None
            assert not e.keys() & {"timings", "prompt_progress"}
        for index in range(scenario.num_choices):
            mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            reasons = [choice["finish_reason"] for choice in mine]
            assert reasons[-1] in ("stop", "length", "tool_calls")
            assert reasons[:-1] == [None] * (len(mine) - 1)
            if scenario.kind is EndpointKind.CHAT:
                roles = [choice["delta"].get("role") for choice in mine]
                assert roles == ["assistant"] + [None] * (len(mine) - 1)


def test_usage_of_choices_adds_up_and_prompts_count_once() -> None:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    expected = {
        "llama_chat": Usage(42, 8, 0),
        "llama_chat_n2": Usage(33, 8, 24),
        "llama_completion_2x2": Usage(8, 12, 2),
        "vllm_chat": Usage(9, 6, 0),
        "sloppy_chat": Usage(3, 4, 0),
    }
    for name, usage in expected.items():
        reader = StreamRelay(by_name[name].options())
        reader.feed(by_name[name].stream)
        assert reader.usage == usage, name


def test_progress_is_exposed_and_not_forwarded() -> None:
    scenario = SCENARIOS[0]
    reader = StreamRelay(scenario.options())
    seen: list[tuple[int, int]] = []
    for raw in scenario.stream.split(b"\n\n")[:4]:
        assert reader.feed(raw + b"\n\n") == b""
        assert not reader.has_token
        assert reader.progress is not None
        seen.append((reader.progress.processed, reader.progress.total))
    assert seen == [(0, 42), (16, 42), (32, 42), (42, 42)]


def test_known_envelopes_go_on_as_read() -> None:
    reader = relay()
    reader.feed(ROLE)
    for content in ("a", " b", 'say "x" \\ \n', "你好😀", "\\"):
        raw = text(content)
        assert reader.feed(raw) is raw or reader.feed(raw) == raw
        assert reader.has_token
    assert reader.feed(text("")) == text("")
    assert not reader.has_token


def test_a_read_may_hold_several_events() -> None:
    reader = relay()
    reads = [ROLE + text("a"), text("b") + text("c") + text("d"), text("e") + STOP + USAGE + DONE]
    out = b"".join(reader.feed(read) for read in reads)
    assert texts(read_stream(out))[0]["content"] == "abcde"
    assert reader.num_token_events == 5
    assert reader.usage == Usage(3, 2, 0)
    assert reader.finish_reason == "stop"


def test_two_choices_in_one_event_are_not_taken_for_one() -> None:
    # The first choice's prefix and the second one's suffix are both known; the middle is not a string.
    reader = relay(num_choices=2)
    for index in (0, 1):
        reader.feed(event({"role": "assistant"}, index=index))
        reader.feed(text("x", index=index))
    both = {
        "id": "e1", "object": "chat.completion.chunk", "created": 5, "model": "m",
        "choices": [
            {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "delta": {"content": "b"}, "logprobs": None, "finish_reason": None},
        ],
    }  # fmt: skip
    out = reader.feed(frame(both))
    assert reader.finish_reason == "stop"
    assert orjson.loads(out[6:]) == both


def test_created_that_ticks_is_kept_constant() -> None:
    reader = relay()
    raw = ROLE.replace(b'"created":5', b'"created":7')
    out = reader.feed(raw)
    for second in range(8, 14):
        for content in ("a", "b", "c"):
            out += reader.feed(text(content, created=second))
    out += reader.feed(STOP + DONE)
    events = read_stream(out)
    assert {e["created"] for e in events} == {7}
    assert texts(events)[0]["content"] == "abc" * 6


@pytest.mark.parametrize("created", [None, 0, -5, "5", 5.5, True])
def test_a_created_that_is_no_time_is_ours(created: Any) -> None:
    events = run(ROLE.replace(b'"created":5', b'"created":' + orjson.dumps(created)) + STOP + DONE)
    assert {e["created"] for e in events} == {1000}


@pytest.mark.parametrize("engine_id", ["", None, 7])
def test_an_id_that_is_none_is_ours(engine_id: Any) -> None:
    events = run(event({"role": "assistant"}, id=engine_id) + text("x", id=engine_id) + STOP + DONE)
    assert {e["id"] for e in events} == {"ours"}


def test_an_engine_without_trustworthy_ids_gets_ours() -> None:
    assert {e["id"] for e in run(ROLE + STOP + DONE, keep_engine_id=False)} == {"ours"}


def test_the_model_is_always_the_one_given() -> None:
    events = run(ROLE + text("a") + text("b") + STOP + USAGE + DONE, model='ali"as', include_usage=True)
    assert {e["model"] for e in events} == {'ali"as'}


@pytest.mark.parametrize(
    "first", [text("a"), event({"role": None, "content": "a"}), event({"role": "", "content": "a"})]
)
def test_a_missing_role_is_supplied_once(first: bytes) -> None:
    events = run(first + text("b") + STOP + DONE)
    assert [e["choices"][0]["delta"].get("role") for e in events] == ["assistant", None, None]
    assert texts(events)[0] == {"role": "assistant", "content": "ab"}


def test_a_repeated_role_is_said_once_also_on_the_fast_path() -> None:
    repeated = [event({"role": "assistant", "content": content}) for content in "abcd"]
    events = run(b"".join(repeated) + STOP + DONE)
    assert texts(events)[0] == {"role": "assistant", "content": "abcd"}


def test_an_empty_answer_still_has_a_role() -> None:
    (only,) = run(STOP + DONE)
    assert only["choices"][0]["delta"] == {"role": "assistant"}


@pytest.mark.parametrize(
    ("said", "reason"), [("eos_token", "stop"), ("MAX_TOKENS", "length"), ("stop", "stop")]
)
def test_finish_reasons_are_translated(said: str, reason: str) -> None:
    assert run(ROLE + event(finish=said) + DONE)[-1]["choices"][0]["finish_reason"] == reason


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


class TestUsage:
    def test_absent_from_the_engine_it_is_estimated_and_marked(self) -> None:
        reader = relay(include_usage=True, prompt_tokens_estimate=11)
        out = reader.feed(ROLE + text("a") + text("b") + STOP + DONE)
        assert reader.usage == Usage(11, 2, 0, estimated=True)
        assert read_stream(out)[-1]["usage"]["total_tokens"] == 13

    def test_on_every_chunk_the_last_one_counts(self) -> None:
        def counted(n: int) -> dict[str, int]:
            return {"prompt_tokens": 4, "completion_tokens": n, "total_tokens": 4 + n}

        stream = ROLE + text("a", usage=counted(1)) + text("b", usage=counted(2))
        stream += event(finish="stop", usage=counted(2)) + DONE
        assert all("usage" not in e for e in run(stream))
        events = run(stream, include_usage=True)
        assert [e["usage"] for e in events] == [None, None, None, None, counted(2)]

    def test_of_a_cut_stream_is_what_was_counted(self) -> None:
        reader = relay(prompt_tokens_estimate=7)
        reader.feed(ROLE + text("a") + text("b") + text("c"))
        assert reader.usage is None
        assert reader.spent() == Usage(7, 3, 0, estimated=True)
        assert reader.spent() == Usage(7, 3, 0, estimated=True)

    def test_of_a_stream_cut_in_prefill_comes_from_its_progress(self) -> None:
        scenario = SCENARIOS[0]
        reader = StreamRelay(scenario.options())
        reader.feed(scenario.stream.split(b"\n\n")[0] + b"\n\n")
        assert reader.spent() == Usage(42, 0, 0, estimated=True)

    def test_null_or_malformed_reports_count_nothing(self) -> None:
        stream = ROLE.replace(b"}]}", b'}],"usage":null}') + STOP
        stream += frame({"choices": [], "usage": {"prompt_tokens": "many"}}) + DONE
        reader = relay()
        reader.feed(stream)
        assert reader.usage == Usage(0, 0, 0, estimated=True)


class TestToolCalls:
    def test_deltas_pass_unchanged(self) -> None:
        scenario = next(s for s in SCENARIOS if s.name == "tool_calls")
        reader = StreamRelay(replace(scenario.options(), model="m"))
        raw = scenario.stream.split(b"\n\n")[:-3]
        assert [reader.feed(e + b"\n\n") for e in raw] == [e + b"\n\n" for e in raw]

    def test_tokens_are_arguments_not_names_or_unknown_members(self) -> None:
        scenario = next(s for s in SCENARIOS if s.name == "tool_calls")
        reader = StreamRelay(scenario.options())
        seen = []
        for raw in scenario.stream.split(b"\n\n")[:7]:
            reader.feed(raw + b"\n\n")
            seen.append(reader.has_token)
        assert seen == [False, False, True, True, True, False, False]


def test_translated_logprobs_have_running_offsets() -> None:
    scenario = next(s for s in SCENARIOS if s.name == "llama_completion_logprobs")
    reader = StreamRelay(scenario.options())
    found = [e["choices"][0]["logprobs"] for e in read_stream(reader.feed(scenario.stream))]
    assert [entry["text_offset"] for entry in found if entry] == [[0], [2], [9]]
    assert all(
        entry.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        for entry in found
        if entry
    )


def test_envelopes_that_never_repeat_do_not_pile_up() -> None:
    reader = relay()
    reader.feed(ROLE)
    for number in range(1500):
        reader.feed(text("x", id=f"e{number}"))
    assert reader.num_token_events == 1500
    assert len(reader._envelopes) <= 512


def test_a_relayed_event_is_cheap() -> None:
    reader = relay()
    reader.feed(ROLE + text("a"))
    raw = text(" token")
    best = min(timeit.repeat(lambda: reader.feed(raw), number=2000, repeat=9)) / 2000
    assert best < 3e-6  # about 0.7 µs on an idle core; the margin is for busy ones
