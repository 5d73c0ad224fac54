"""Counting instructions: the arithmetic, and the cheapest participant where valgrind is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gateway_instructions
from benchmarks.overhead.instructions import Window, count, missing_tools
from benchmarks.overhead.participants import BARE, known


def test_what_an_idle_second_costs_is_taken_off() -> None:
    assert Window(5_000, 2.0).per_s == 2_500
    assert Window(5_000, 2.0).without(1_000) == 3_000


def test_without_valgrind_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="apt-get install valgrind"):
        gateway_instructions.main([])


@pytest.mark.skipif(bool(missing_tools()), reason="valgrind is not installed")
def test_a_bare_relay_is_counted(tmp_path: Path) -> None:
    counted = count(known()[BARE], tmp_path)
    assert 5_000 < counted.plain < 100_000
    assert 1_000 < counted.token < 20_000
    assert counted.idle_per_s < counted.plain
