"""Durations as text: the short way gives what rounding and formatting give."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.telemetry.digits import milliseconds, rounded, seconds

# Of every size, on the grid, in the middle between two of its points and a little beside that.
ON_GRID = st.builds(
    lambda halves, beside: halves * 5e-7 + beside,
    st.integers(0, 10**10) | st.integers(0, 400),
    st.sampled_from([0.0, 1e-16, -1e-16, 1e-12, -1e-12, 1e-10, -1e-10, 1e-9, -1e-9]),
)
DURATIONS = ON_GRID | st.floats(0, 1e-4) | st.floats(0, 10) | st.floats() | st.floats(0, 1e-300)


@given(DURATIONS.filter(lambda value: math.copysign(1, value) > 0 or value != 0))
def test_seconds_are_those_of_the_general_way(duration_s: float) -> None:
    assert seconds(duration_s) == orjson.dumps(rounded(duration_s)).decode()


@given(DURATIONS.filter(lambda value: value >= 0 and math.copysign(1, value) > 0))
def test_milliseconds_are_those_of_a_format(duration_s: float) -> None:
    expected = f"{duration_s * 1000:.3f}".rstrip("0").rstrip(".")
    assert milliseconds(duration_s) == expected


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(None, "null"), (0.0, "0.0"), (4e-6, "4e-6"), (9.6e-6, "0.00001"), (0.25, "0.25"),
     (0.000045, "0.000045"), (0.100001, "0.100001"), (1.0, "1.0"), (12.05, "12.05"), (0.9999996, "1.0"),
     (3600.5000004, "3600.5"), (math.nan, "null"), (math.inf, "null"), (-0.5, "-0.5")],
)  # fmt: skip
def test_what_lines_say(duration_s: float | None, text: str) -> None:
    assert seconds(duration_s) == text
