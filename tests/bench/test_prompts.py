"""Prompts: the length asked for, beginnings shared or not as asked, and bodies in the right dialect."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from llm_runtime.bench.bodies import BodyWriter
from llm_runtime.bench.config import Prefix, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed, parse_length
from llm_runtime.bench.prompts import POOL_WORDS, PromptWriter
from llm_runtime.bench.workload import Session, SyntheticSessions, Turn
from llm_runtime.core.errors import ConfigError


def num_words(text: str) -> int:
    return len(text.split(" "))


@pytest.mark.parametrize("tokens", [1, 3, 5, 6, 100, 4096, POOL_WORDS + 100])
def test_a_prompt_has_as_many_words_as_tokens_asked_for(tokens: int) -> None:
    assert num_words(PromptWriter("salt").unique("k", tokens)) == tokens


def test_fewer_words_where_the_tokenizer_splits_them() -> None:
    assert num_words(PromptWriter("salt", tokens_per_word=1.25).unique("k", 100)) == 80


def test_no_two_prompts_begin_alike() -> None:
    writer = PromptWriter("salt")
    heads = {" ".join(writer.unique(str(number), 64).split(" ")[:5]) for number in range(5000)}
    assert len(heads) == 5000


def test_the_same_salt_repeats_the_words_and_another_shares_none() -> None:
    one, same, other = PromptWriter("a"), PromptWriter("a"), PromptWriter("b")
    assert one.unique("1", 500) == same.unique("1", 500)
    assert one.unique("1", 500).split()[:5] != other.unique("1", 500).split()[:5]


def test_a_shorter_block_is_the_beginning_of_the_same_block() -> None:
    writer = PromptWriter("salt")
    assert writer.block(7, 512).startswith(writer.block(7, 100) + " ")
    assert not writer.block(8, 512).startswith(writer.block(7, 100))


def body_of(session: Session, target: Target, turn: int = 0) -> dict[str, Any]:
    writer = BodyWriter(target, "m", PromptWriter("salt"))
    history = [{"role": "user", "content": writer.user_text(session, turn)}]
    body: dict[str, Any] = orjson.loads(writer.body(session, turn, history))
    return body


def test_a_chat_stream_asks_for_its_usage() -> None:
    session = Session(0, TrafficClass(priority=2), (Turn(10, 20),))
    body = body_of(session, Target("http://x", ignore_eos=True))
    text = body.pop("messages")[0]["content"]
    assert num_words(text) == 10
    assert body == {
        "model": "m", "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
        "ignore_eos": True, "max_tokens": 20, "priority": 2,
    }  # fmt: skip


def test_a_plain_completion_has_neither_and_extra_members_win() -> None:
    session = Session(0, TrafficClass(), (Turn(10, 20),))
    target = Target("http://x", "completions", stream=False, temperature=None, extra_body={"max_tokens": 3})
    body = body_of(session, target)
    assert num_words(body.pop("prompt")) == 10
    assert body == {"model": "m", "max_tokens": 3}


def test_headers_name_the_tenant_and_the_class_key_wins() -> None:
    writer = BodyWriter(Target("http://x", api_key="general"), "m", PromptWriter("s"))
    own = Session(0, TrafficClass(tenant="alice", api_key="special"), (Turn(1, 1),))
    assert writer.headers(own) == {"authorization": "Bearer special", "x-tenant-id": "alice"}
    assert writer.headers(Session(0, TrafficClass(), (Turn(1, 1),))) == {"authorization": "Bearer general"}


def test_a_shared_prefix_comes_first_and_adds_to_the_length() -> None:
    traffic = TrafficClass(input_tokens=Fixed(20), prefix=Prefix(100, 2))
    writer = BodyWriter(Target("http://x"), "m", PromptWriter("salt"))
    sessions = SyntheticSessions((traffic,), seed=1)
    texts: dict[int, list[str]] = {0: [], 1: []}
    for number in range(40):
        session = sessions.session(number)
        prefix = session.turns[0].prefix
        assert prefix is not None
        texts[prefix].append(writer.user_text(session, 0))
    assert all(num_words(text) == 120 for group in texts.values() for text in group)
    for group in texts.values():
        assert len({" ".join(text.split()[:100]) for text in group}) == 1
        assert len(set(group)) == len(group) > 5


def test_a_traces_blocks_share_text_exactly_where_their_ids_agree() -> None:
    writer = BodyWriter(Target("http://x"), "m", PromptWriter("salt"))

    def text(number: int, *ids: int) -> list[str]:
        turn = Turn(sum(1 for _ in ids) * 50 - 10, 1, None, ids, 50)
        return writer.user_text(Session(number, TrafficClass(), (turn,)), 0).split()

    one, two = text(0, 1, 2, 3), text(1, 1, 2, 4)
    assert (len(one), len(two)) == (140, 140)
    assert one[:100] == two[:100]
    assert one[100:105] != two[100:105]


def test_tokens_beyond_a_traces_blocks_are_the_requests_own() -> None:
    writer = BodyWriter(Target("http://x"), "m", PromptWriter("salt"))
    texts = [
        writer.user_text(Session(number, TrafficClass(), (Turn(80, 1, None, (1,), 50),)), 0).split()
        for number in range(2)
    ]
    assert len(texts[0]) == 80
    assert texts[0][:50] == texts[1][:50]
    assert texts[0][50:55] != texts[1][50:55]


def test_sessions_follow_from_seed_and_number_alone() -> None:
    traffic = (
        TrafficClass("a", 3.0, parse_length("uniform:10:20"), turns=parse_length("uniform:1:3")),
        TrafficClass("b", 1.0, Fixed(5)),
    )
    sessions = SyntheticSessions(traffic, seed=4)
    forward = [sessions.session(number) for number in range(2000)]
    assert [sessions.session(number) for number in (1999, 0, 7)] == [forward[1999], forward[0], forward[7]]
    assert forward != [SyntheticSessions(traffic, seed=5).session(number) for number in range(2000)]
    share = sum(session.traffic.name == "a" for session in forward) / len(forward)
    assert share == pytest.approx(0.75, abs=0.03)
    lengths = {turn.input_tokens for s in forward if s.traffic.name == "a" for turn in s.turns}
    assert lengths == set(range(10, 21))


@pytest.mark.parametrize(
    ("text", "mean"), [("uniform:10:30", 20.0), ("normal:100:10", 100.0), ("lognormal:100:0.5", 113.3)]
)
def test_drawn_lengths_have_the_mean_of_their_distribution(text: str, mean: float) -> None:
    source, length = random.Random(1), parse_length(text)
    drawn = [length.draw(source) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.02)
    assert str(length) == text


def test_drawn_lengths_are_at_least_one() -> None:
    assert {parse_length("normal:1:0").draw(random.Random(0)) for _ in range(9)} == {1}
    assert min(parse_length("normal:2:50").draw(random.Random(n)) for n in range(50)) == 1


@pytest.mark.parametrize("text", ["", "0", "-3", "x", "uniform:5", "uniform:9:5", "normal:nan:1", "zipf:1:2"])
def test_what_is_no_length_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length"):
        parse_length(text)
