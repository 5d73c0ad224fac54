from __future__ import annotations

import timeit
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import (
    BackendProtocolError,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.relay import StreamRelay
from tests.wire.builders import DONE, ROLE, STOP, USAGE, changed, event, frame, relay, run, text
from tests.wire.scenarios import SCENARIOS
from tests.wire.sdk import read_stream, texts


def test_known_envelopes_go_on_as_read() -> None:
    reader = relay()
    reader.feed(ROLE)
    for content in ("a", " b", 'say "x" \\ \n', "你好😀", "\\"):
        raw = text(content)
        assert reader.feed(raw) is raw
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
        reader = StreamRelay(changed(scenario.options(), model="m"))
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


def test_broken_characters_are_replaced_also_in_a_known_envelope() -> None:
    reader = relay()
    reader.feed(ROLE + text("a"))
    out = reader.feed(text("b?").replace(b"?", b"\xe4\xbd"))
    assert orjson.loads(out[6:])["choices"][0]["delta"]["content"] == "b\ufffd"


def test_half_an_event_is_not_overtaken_by_a_known_one() -> None:
    reader = relay()
    reader.feed(ROLE + text("a"))
    assert reader.feed(b'data: {"x":\n') == b""
    with pytest.raises(BackendProtocolError):
        reader.feed(text("b"))
