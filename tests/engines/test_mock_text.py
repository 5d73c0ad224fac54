"""The mock's words, where they end, and stop strings across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.engines.mock_text import WORDS, Answer, natural_length
from llm_runtime.engines.stop_filter import StopFilter


def generate(answer: Answer) -> list[str]:
    pieces = []
    while answer.finish_reason is None:
        pieces.append(answer.next())
    return pieces


def test_the_vocabulary_is_a_prime_number_of_different_words() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(len(WORDS) % divisor for divisor in range(2, len(WORDS)))


@given(key=st.integers(0, 2**64 - 1), variant=st.integers(0, 127), max_tokens=st.integers(1, 200))
def test_an_answer_is_words_and_ends_where_it_must(key: int, variant: int, max_tokens: int) -> None:
    answer = Answer(key, variant, max_tokens)
    pieces = generate(answer)
    assert len(pieces) == answer.num_tokens <= max_tokens
    assert pieces == generate(Answer(key, variant, max_tokens))
    words = "".join(pieces).split(" ")
    assert len(words) == len(pieces)
    assert {word.strip(".").lower() for word in words} <= set(WORDS)
    if answer.finish_reason == "length":
        assert answer.num_tokens == max_tokens
    else:
        assert answer.finish_reason == "stop"
        assert answer.num_tokens % 12 == 0
        assert 72 <= answer.num_tokens <= 132
        assert words[-1].endswith("."), "answers end with a sentence"


def test_some_prompts_end_by_themselves_and_some_never_do() -> None:
    lengths = [natural_length(key * 0x9E3779B97F4A7C15 % 2**64) for key in range(400)]
    share_endless = lengths.count(None) / len(lengths)
    assert 0.15 < share_endless < 0.35
    assert len(set(lengths)) > 3


def test_ignoring_the_end_goes_on_to_the_cap() -> None:
    answer = Answer(1, 0, 1000, endless=True)
    assert len(generate(answer)) == 1000
    assert answer.finish_reason == "length"


def test_no_two_choices_are_alike() -> None:
    texts = {"".join(generate(Answer(77, variant, 3))) for variant in range(128)}
    assert len(texts) == 128


def _filter(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], bool]:
    stop_filter = StopFilter(stops)
    shown = []
    for piece in pieces:
        text, stopped = stop_filter.feed(piece)
        shown.append(text)
        if stopped:
            return shown, True
    shown.append(stop_filter.flush())
    return shown, False


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_what_is_shown_is_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    """Against the definition, at the piece where a stop string first becomes complete."""
    shown, stopped = _filter(pieces, stops)
    text = ""
    for piece in pieces:
        text += piece
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            assert stopped
            assert "".join(shown) == text[: min(found)]
            return
    assert not stopped
    assert "".join(shown) == text


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    shown, stopped = _filter(["one", " tw", "in", " two"], [" two"])
    assert shown == ["one", "", " twin", ""]
    assert stopped


@pytest.mark.parametrize("stops", [["zzz"], ["never", "seen"]])
def test_unrelated_stop_strings_hold_nothing_back(stops: list[str]) -> None:
    pieces = ["a", "b", "c"]
    assert _filter(pieces, stops) == ([*pieces, ""], False)


def test_held_text_is_shown_when_the_cap_cuts_the_answer_off() -> None:
    plain = "".join(generate(Answer(5, 0, 6)))
    stop = plain[-3:] + " never"
    answer = Answer(5, 0, 6, stops=[stop])
    assert "".join(generate(answer)) == plain
    assert answer.finish_reason == "length"
