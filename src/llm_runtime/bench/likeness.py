"""How near an engine's answers are to a reference's, by its own words and its own log-probabilities.

Two questions, because each alone misleads. What it says freely (greedy): one early difference changes all
that follows, so many answers differ although nothing got worse. What it thinks of a given text, word by
word: no difference carries on, and the mean log-probability tells better from worse on that text only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llm_runtime.bench.stats import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class Scored:
    """A text as an engine reads it. logprobs: natural logarithms, of each token but the first given those
    before. likeliest: what the engine would have put there."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    likeliest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """mean_logprob: of a token. perplexity_ratio: the engine's over the reference's, above 1 being worse,
    with its interval over texts. same_likeliest: share of places where both think the same token likeliest.
    same_answers: share of greedy answers that are equal; same_beginning: mean share of a reference answer's
    tokens before the first difference."""

    mean_logprob: float
    perplexity_ratio: float
    perplexity_ratio_interval: Interval | None
    same_likeliest: float
    same_answers: float
    same_beginning: float


def likeness(
    reference: tuple[Sequence[Scored], Sequence[Sequence[str]]],
    other: tuple[Sequence[Scored], Sequence[Sequence[str]]],
) -> Likeness:
    """Both: texts and greedy answers, the latter as tokens, in one order.

    Raises ValueError where texts were read as other tokens, or numbers differ: nothing is comparable then.
    """
    pairs = list(zip(reference[0], other[0], strict=True))
    if any(one.tokens != two.tokens or not one.logprobs for one, two in pairs):
        raise ValueError("the texts are other tokens for this engine, or too short")
    worse = [_sum(one) - _sum(two) for one, two in pairs]
    lengths = [len(one.logprobs) for one, _ in pairs]
    interval = mean_interval([each / length for each, length in zip(worse, lengths, strict=True)], 0)
    same = [a == b for one, two in pairs for a, b in zip(one.likeliest, two.likeliest, strict=True)]
    beginnings = [beginning(one, two) for one, two in zip(reference[1], other[1], strict=True)]
    equal = [tuple(one) == tuple(two) for one, two in zip(reference[1], other[1], strict=True)]
    return Likeness(
        mean_logprob=sum(_sum(two) for _, two in pairs) / sum(lengths),
        perplexity_ratio=math.exp(sum(worse) / sum(lengths)),
        perplexity_ratio_interval=None
        if interval is None
        else (math.exp(interval[0]), math.exp(interval[1])),
        same_likeliest=statistics.fmean(same),
        same_answers=statistics.fmean(equal),
        same_beginning=statistics.fmean(beginnings),
    )


def beginning(reference: Sequence[str], other: Sequence[str]) -> float:
    """The share of the reference's tokens before the first that differs; 1 for two empty answers."""
    if not reference:
        return float(not other)
    same = 0
    for one, two in zip(reference, other, strict=False):
        if one != two:
            break
        same += 1
    return same / len(reference)


def _sum(text: Scored) -> float:
    return math.fsum(text.logprobs)
