"""What counts as a token, when, and what counts as a whole answer; bytes and instants by hand."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.bench.answer import PlainAnswer, StreamAnswer
from llm_runtime.core.outcome import Usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
DONE = b"data: [DONE]\n\n"


def event(**members: Any) -> bytes:
    return b"data: " + orjson.dumps(members) + b"\n\n"


def delta(finish: str | None = None, **members: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": members, "finish_reason": finish}])


def read(*reads: tuple[float, bytes], is_chat: bool = True, keep_text: bool = False) -> StreamAnswer:
    answer = StreamAnswer(is_chat=is_chat, keep_text=keep_text)
    for at, body in reads:
        answer.feed(body, at)
    return answer


END = delta("stop") + event(choices=[], usage=USAGE) + DONE


@pytest.mark.parametrize(
    "role",
    [
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(role="assistant", content=None),
        delta(role="assistant", tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        event(choices=[]),
        event(choices=[], usage=None),
        b": ping\n\n",
        b"event: ping\n\n",
    ],
)
def test_a_role_a_name_and_a_comment_are_no_tokens(role: bytes) -> None:
    answer = read((0.01, role), (0.5, delta(content="a")), (0.52, END))
    assert list(answer.token_read_at) == [0.5]
    assert answer.close(0.52) is None


@pytest.mark.parametrize(
    "token",
    [
        delta(content="a"),
        delta(role="assistant", content="a"),
        delta(reasoning_content="a"),
        delta(reasoning="a"),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
    ],
)
def test_f47_text_reasoning_and_arguments_are_tokens(token: bytes) -> None:
    answer = read((0.3, token), (0.5, END))
    assert list(answer.token_read_at) == [0.3]
    assert answer.num_token_events == 1


def test_completions_carry_text() -> None:
    def piece(text: str, finish: str | None = None) -> bytes:
        return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])

    answer = read((0.1, piece("")), (0.2, piece("a")), (0.3, piece("", "length") + DONE), is_chat=False)
    assert list(answer.token_read_at) == [0.2]
    assert answer.close(0.3) is None
    assert answer.finish_reason == "length"


def test_tokens_of_one_read_share_its_instant() -> None:
    answer = read((0.1, delta(content="a") * 3), (0.2, delta(content="b")), (0.3, END))
    assert list(answer.token_read_at) == [0.1, 0.2]
    assert answer.num_token_events == 4


def test_an_event_counts_when_it_is_whole() -> None:
    whole = delta(content="äöü")
    answer = read((0.1, whole[:40]), (0.2, whole[40:-1]), (0.3, whole[-1:]), (0.4, END))
    assert list(answer.token_read_at) == [0.3]


def test_carriage_returns_end_lines_too() -> None:
    body = (delta(content="a") + END).replace(b"\n", b"\r\n")
    answer = read((0.1, body))
    assert answer.close(0.1) is None
    assert answer.usage == Usage(7, 3, 0)


def test_f49_h_the_last_of_many_usages_counts() -> None:
    parts = [
        event(
            choices=[{"index": 0, "delta": {"content": "a"}}],
            usage={"prompt_tokens": 7, "completion_tokens": n},
        )
        for n in (1, 2, 3)
    ]
    answer = read((0.1, b"".join(parts)), (0.2, delta("stop") + DONE))
    assert answer.close(0.2) is None
    assert answer.usage == Usage(7, 3, 0)


def test_the_end_is_when_the_answer_says_so() -> None:
    answer = read((0.1, delta(content="a")), (0.4, END), (0.9, b": after\n\n"))
    assert answer.done_at == 0.4


def test_an_end_without_its_blank_line_is_an_end() -> None:
    answer = read((0.1, delta("stop", content="a")), (0.2, DONE[:-2]))
    assert answer.done_at is None
    assert answer.close(0.3) is None
    assert answer.done_at == 0.3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "stream_without_finish"),
        (delta(content="a"), "stream_without_finish"),
        (delta(content="a") + DONE, "stream_without_finish"),
        (delta("stop", content="a"), "stream_without_done"),
        (delta("abort", content="a") + DONE, "aborted_by_server"),
        (delta(content="a") + event(error={"message": "m", "code": "c"}) + DONE, "error_event"),
        (event(error={"message": "m", "type": "c", "code": None}) + END, "error_event"),
        (b"data: {broken\n\n" + END, "bad_answer"),
        (b"data: [1]\n\n" + END, "bad_answer"),
        (b"<html></html>\n\n", "stream_without_finish"),
        (event(choices=[3]) + END, "bad_answer"),
    ],
)
def test_what_is_no_whole_answer_is_a_failure(body: bytes, error: str) -> None:
    problem = read((0.1, body)).close(0.2)
    assert problem is not None
    assert problem.error == error


def test_an_error_event_tells_the_servers_word() -> None:
    problem = read((0.1, event(error={"message": "too busy", "type": "t", "code": "queue_full"}))).close(0.2)
    assert problem is not None
    assert (problem.code, problem.message) == ("queue_full", "too busy")


def test_text_is_kept_for_the_next_turn_reasoning_is_not() -> None:
    answer = read(
        (0.1, delta(reasoning_content="hm") + delta(content="a") + delta(content="b")), keep_text=True
    )
    assert answer.text == ["a", "b"]


def plain(status: int, body: bytes, keep_text: bool = False) -> tuple[PlainAnswer, Any]:
    answer = PlainAnswer(status, keep_text=keep_text)
    answer.feed(body[:5], 0.1)
    answer.feed(body[5:], 0.2)
    return answer, answer.close(0.3)


def test_a_plain_answer_has_usage_and_no_instants_of_tokens() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    answer, problem = plain(200, orjson.dumps({"choices": [choice], "usage": USAGE}), keep_text=True)
    assert problem is None
    assert answer.usage == Usage(7, 3, 0)
    assert list(answer.token_read_at) == []
    assert (answer.finish_reason, answer.text, answer.done_at) == ("stop", ["hi"], 0.3)


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (
            503,
            b'{"error":{"message":"full","type":"t","param":null,"code":"queue_full"}}',
            "http_503",
            "queue_full",
        ),
        (422, b'{"detail":"no"}', "http_422", None),
        (500, b"Internal Server Error", "http_500", None),
        (502, b"", "http_502", None),
        (200, b'{"error":{"message":"m","code":500}}', "error_event", "500"),
        (200, b'{"choices":[]}', "bad_answer", None),
        (200, b"[]", "bad_answer", None),
        (200, b'{"choices":[{"finish_reason"', "bad_answer", None),
    ],
)
def test_plain_failures_are_told_apart(status: int, body: bytes, error: str, code: str | None) -> None:
    _, problem = plain(status, body)
    assert (problem.error, problem.code) == (error, code)


def streamed(*texts: str, **members: Any) -> list[bytes]:
    def choice(text: str) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": text}, "finish_reason": None}

    return [event(**members, choices=[choice(text)]) for text in texts]


@pytest.mark.parametrize("keep_text", [False, True])
def test_events_alike_are_told_without_parsing_and_mean_the_same(keep_text: bool) -> None:
    """The same answer whether its events may be told by their shape or, text being kept, never are."""
    texts = ["a", "", "m", 'say "x"', "back\\slash", "ü", "\n", "a", "", "", "b"]
    events = streamed(*texts, model="m", id="1")
    answer = read(*((float(at), event) for at, event in enumerate(events)), (99.0, END), keep_text=keep_text)
    assert list(answer.token_read_at) == [float(at) for at, text in enumerate(texts) if text]
    assert answer.num_token_events == 8
    assert answer.close(99.0) is None


def test_a_shape_is_learnt_anew_when_the_envelope_changes() -> None:
    events = [event for second in range(5) for event in streamed("a", "b", "c", created=second)]
    answer = read(*((float(at), event) for at, event in enumerate(events)))
    assert answer.num_token_events == 15


TOKEN: dict[str, Any] = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"choices": [TOKEN], "usage": USAGE}, "stream_without_finish"),
        ({"error": {"message": "m"}, "choices": [TOKEN]}, "error_event"),
        ({"choices": [{**TOKEN, "finish_reason": "stop"}]}, "stream_without_done"),
        ({"choices": [{**TOKEN, "delta": {"content": "a", "x": 1}}]}, "stream_without_finish"),
    ],
)
def test_an_event_that_is_only_almost_alike_is_parsed(odd: dict[str, Any], error: str) -> None:
    plain = streamed("a", "b", "c")
    answer = read((0.1, b"".join(plain)), (0.2, plain[1]), (0.3, event(**odd)))
    assert answer.num_token_events == (4 if "error" in odd else 5)
    assert (answer.usage is not None) == ("usage" in odd)
    problem = answer.close(0.4)
    assert problem is not None
    assert problem.error == error


def test_a_known_shape_inside_an_unfinished_event_is_not_a_token_of_its_own() -> None:
    first, second = streamed("a", "b")
    answer = read((0.1, first), (0.2, b": a comment that goes on "), (0.3, second), (0.4, END))
    # The comment's line swallows what follows it until its end, the second event's data line.
    assert list(answer.token_read_at) == [0.1]
