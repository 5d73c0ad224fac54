"""The compiled build: its list and, in the environment of `make compiled`, that all of it was compiled."""

from __future__ import annotations

import importlib
import tomllib
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

from hatch_build import paths_of
from llm_runtime.core import build

ROOT = Path(__file__).parents[1]
compiled_only = pytest.mark.skipif(not build.COMPILED, reason="needs the environment of `make compiled`")


def listed() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return modules


def test_every_listed_module_has_a_source() -> None:
    assert [path for path in paths_of(listed()) if not (ROOT / "src" / path).is_file()] == []


def test_none_is_listed_twice_and_the_list_is_in_order() -> None:
    assert listed() == sorted(set(listed()))


def test_the_module_that_says_so_is_compiled_with_the_others() -> None:
    assert build.__name__ in listed()


@compiled_only
@pytest.mark.parametrize("module", listed())
def test_it_was_compiled_and_its_source_lies_beside_it(module: str) -> None:
    loaded = importlib.import_module(module)
    assert isinstance(loaded.__loader__, ExtensionFileLoader)
    (source,) = paths_of([module])
    assert source.name in {path.name for path in Path(loaded.__file__ or "").parent.iterdir()}
