"""Durations as text, as lines and headers tell them, without the price of formatting floats.

What `round` or a format would make of the number, to the digit: they are asked where the number of whole
units is not certain.
"""

from __future__ import annotations

from typing import Final

import orjson

PADDED: Final = [f"{number:03d}" for number in range(1000)]
_TRIMMED: Final = [digits.rstrip("0") for digits in PADDED]
_BELOW_ONE: Final = [f"0.{digits}" for digits in PADDED]


def seconds(duration_s: float | None) -> str:
    """`rounded`, as orjson writes it."""
    if duration_s is None:
        return "null"
    exact_us = duration_s * 1e6
    if 0.0 <= exact_us < 1e12:
        num_us = int(exact_us + 0.5)
        # Near the middle between two, the product's own error could decide.
        if -0.499 < exact_us - num_us < 0.499:
            num_ms, rest_us = num_us // 1000, num_us % 1000
            if rest_us and 0 < num_ms < 1000:
                return _BELOW_ONE[num_ms] + _TRIMMED[rest_us]
            if num_us < 10:
                return f"{num_us}e-6" if num_us else "0.0"
            fraction = num_ms % 1000
            digits = PADDED[fraction] + _TRIMMED[rest_us] if rest_us else _TRIMMED[fraction]
            return f"{num_ms // 1000}.{digits or '0'}"
    return orjson.dumps(rounded(duration_s)).decode()


def milliseconds(duration_s: float) -> str:
    """With three digits behind the point, less the zeros at the end."""
    duration_ms = duration_s * 1000
    exact_us = duration_ms * 1000
    if 0.0 <= exact_us < 1e12:
        num_us = int(exact_us + 0.5)
        if -0.499 < exact_us - num_us < 0.499:
            num_ms, rest_us = num_us // 1000, num_us % 1000
            return f"{num_ms}.{_TRIMMED[rest_us]}" if rest_us else str(num_ms)
    return f"{duration_ms:.3f}".rstrip("0").rstrip(".")


def rounded(duration_s: float | None) -> float | None:
    """To the microsecond: more digits are noise."""
    return None if duration_s is None else round(duration_s, 6)
