"""The compiled build: its list and, in the environment of `make compiled`, that all of it was compiled."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from hatch_build import RECORD_PROFILE, USE_PROFILE, paths_of, profile
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


@pytest.mark.parametrize(
    ("word", "folder", "flags"),
    [("1", "", []), ("1", "seen", USE_PROFILE), ("record", "seen", RECORD_PROFILE)],
)
def test_a_profile_is_recorded_or_used_only_where_its_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, word: str, folder: str, flags: list[str]
) -> None:
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("LLM_RUNTIME_COMPILE", word)
    monkeypatch.setenv("LLM_RUNTIME_PROFILE", folder)
    assert profile() == (Path(folder).absolute() if folder else None, flags)


@pytest.mark.parametrize(("compiler", "folder"), [("gcc", ""), ("clang", "seen")])
def test_recording_without_a_folder_or_without_gcc_is_refused(
    monkeypatch: pytest.MonkeyPatch, compiler: str, folder: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("LLM_RUNTIME_COMPILE", "record")
    monkeypatch.setenv("LLM_RUNTIME_PROFILE", folder)
    with pytest.raises(SystemExit, match="needs GCC"):
        profile()


@compiled_only
@pytest.mark.parametrize("module", listed())
def test_it_was_compiled_and_its_source_lies_beside_it(module: str) -> None:
    loaded = importlib.import_module(module)
    assert isinstance(loaded.__loader__, ExtensionFileLoader)
    (source,) = paths_of([module])
    assert source.name in {path.name for path in Path(loaded.__file__ or "").parent.iterdir()}


def native_classes(module: ModuleType) -> Iterator[type]:
    """Those that became C structures; mypyc gives them this member."""
    for found in vars(module).values():
        ours = isinstance(found, type) and found.__module__ == module.__name__
        if ours and "__mypyc_attrs__" in vars(found):
            yield found


@compiled_only
@pytest.mark.parametrize("module", listed())
def test_no_compiled_class_stands_on_the_memory_of_one_that_is_not(module: str) -> None:
    """mypyc lays a class out as if a base of Python's had nothing of its own; where it has, both write to
    the same place. So such a base must be as small as `object`."""
    for kind in native_classes(importlib.import_module(module)):
        foreign = [base for base in kind.__mro__[1:] if base.__module__ not in listed()]
        assert {base.__basicsize__ for base in foreign} == {object.__basicsize__}, kind


@compiled_only
def test_there_are_native_classes_to_look_at() -> None:
    names = {kind.__name__ for module in listed() for kind in native_classes(importlib.import_module(module))}
    assert {"Connection", "Cycle", "RequestHandle", "ServerProtocol", "StreamRelay"} <= names
