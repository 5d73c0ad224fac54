"""From tokens to text, with tokenizers as they are: bytes of characters, and bytes that fall back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.engines.hf.text import Detokenizer

Decode = Callable[[list[int]], str]


def byte_level(ids: Sequence[int]) -> str:
    """Every token is a byte, as in byte-level BPE at its finest; what is no UTF-8 becomes U+FFFD."""
    return bytes(ids).decode("utf-8", "replace")


WORDS = {256: "▁Hello", 257: "▁world", 258: "!", 259: "▁"}


def fall_back(ids: Sequence[int]) -> str:
    """As SentencePiece with byte fallback: words with the space before them, the first one's left out;
    a run of byte tokens is a text only as a whole, else one U+FFFD for each byte."""
    text, run = "", b""
    for token in [*ids, 258]:
        if token < 256:
            run += bytes([token])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = b""
        text += WORDS[token].replace("▁", " ")
    text = text.removesuffix("!")
    return text.removeprefix(" ")


def pieces(decode: Decode, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, prompt)
    return [*(detokenizer.feed(token) for token in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, 255), max_size=40))
def test_the_pieces_are_the_text(ids: list[int]) -> None:
    assert "".join(pieces(byte_level, ids)) == byte_level(ids)


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_pieces_are_what_comes_after_the_prompt(prompt: str, answer: str) -> None:
    assert "".join(pieces(byte_level, answer.encode(), prompt.encode())) == answer


@given(st.lists(st.sampled_from(["▁Hello", "!", "é", "你好", "🎉"]), max_size=12))
def test_words_and_bytes_mixed(parts: list[str]) -> None:
    numbers = {word: number for number, word in WORDS.items()}
    ids = [token for part in parts for token in ([numbers[part]] if part in numbers else part.encode())]
    assert "".join(pieces(fall_back, ids, prompt=[258])) == "".join(parts).replace("▁", " ")


def test_f14_a_character_comes_whole_and_as_soon_as_it_is() -> None:
    assert pieces(byte_level, "aé🎉b".encode()) == ["a", "", "é", "", "", "", "🎉", "b", ""]


def test_the_space_before_the_first_word_depends_on_the_prompt() -> None:
    assert pieces(fall_back, [256, 257], prompt=[258])[:2] == [" Hello", " world"]
    assert pieces(fall_back, [256, 257])[:2] == ["Hello", " world"]


def test_f14_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert pieces(byte_level, "né".encode()[:-1]) == ["n", "", "\ufffd"]


def test_a_prompt_that_ends_within_a_character_does_not_swallow_the_answer() -> None:
    first, *rest = "é".encode()
    assert "".join(pieces(byte_level, [*rest, ord("x")], prompt=[first])) == "\ufffdx"


@pytest.mark.parametrize("num_tokens", [2000])
def test_the_cost_of_a_token_does_not_grow(num_tokens: int) -> None:
    """Only the last tokens are decoded again, however long the answer is."""
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_level(ids)

    pieces(decode, b"x" * num_tokens, prompt=b"y" * num_tokens)
    assert longest < 20
