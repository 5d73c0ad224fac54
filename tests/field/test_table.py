"""docs/field-cases.md says the truth: each case has its row, and each file it names has tests of the case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = [
    "F01",
    "F02",
    "F04",
    "F05",
    "F07",
    "F08",
    "F10",
    "F11",
    "F13",
    "F14",
    "F16",
    "F17",
    "F19",
    "F20",
    "F22",
    "F23",
    "F25",
    "F26",
    "F28",
    "F29",
    "F31",
    "F32",
    "F34",
    "F35",
    "F37",
    "F38",
    "F40",
    "F41",
    "F43",
    "F44",
    "F45",
    "F46",
    "F47",
    "F49",
    "F50",
    "F52",
    "F55",
    "F56",
    "F58",
    "F59",
]
ROW = re.compile(r"\| (F\d\d) \| (.+?) \| (.+?) \| (.+?) \|")


def rows() -> dict[str, tuple[str, str, str]]:
    """Of each case: what it is, its tests, its state."""
    text = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
    found = [match for line in text.splitlines() if (match := ROW.fullmatch(line))]
    assert len(found) == len({match[1] for match in found}), "a case has two rows"
    return {match[1]: (match[2], match[3], match[4]) for match in found}


def names_in(path: Path) -> set[str]:
    return set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


ALL = {path: names_in(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def test_every_case_has_its_row() -> None:
    assert list(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_what_passes_has_tests_named_after_it(case: str) -> None:
    _, named, state = rows()[case]
    files = re.findall(r"`(tests/[\w/]+\.py)`", named)
    assert all((ROOT / file).is_file() for file in files), files
    wanted = re.compile(rf"(?:test|_)_?{case.lower()}_")
    in_files = {name for file in files for name in ALL[ROOT / file] if wanted.search(name)}
    if state.startswith("not yet"):
        assert in_files == set()
        return
    assert state.startswith("pass")
    assert files
    for file in files:
        assert any(wanted.search(name) for name in ALL[ROOT / file]), f"{file} has no test of {case}"


def test_no_test_of_a_case_is_missing_from_its_row() -> None:
    for path, names in ALL.items():
        cases = {case.upper() for name in names for case in re.findall(r"_(f\d\d)(?=_)", name)}
        for case in cases:
            assert str(path.relative_to(ROOT)) in rows()[case][1], f"{case} has tests in {path.name}"
