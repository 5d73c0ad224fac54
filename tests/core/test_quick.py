"""Frozen records made the quick way behave as dataclasses do in every other respect."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from llm_runtime.core.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list)
    d: int = field(default=7, kw_only=True)


@dataclass(frozen=True, slots=True)
class Usual:
    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list)
    d: int = field(default=7, kw_only=True)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "y", [2]), {"d": 3}),
    ((), {"a": 1, "d": 2}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_the_same_fields_come_of_the_same_call(args: Any, kwargs: Any) -> None:
    assert dataclasses.asdict(Quick(*args, **kwargs)) == dataclasses.asdict(Usual(*args, **kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, "y", [], 4), {}), ((1,), {"a": 2}), ((1,), {"e": 2})]
)
def test_a_wrong_call_is_wrong(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        Quick(*args, **kwargs)


def test_it_is_frozen_from_the_moment_it_is_made() -> None:
    made = Quick(1)
    assert type(made) is Quick
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.a = 2  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        made.other = 2  # type: ignore[attr-defined]


def test_what_dataclasses_can_do_it_can() -> None:
    made = Quick(1, c=[5], d=2)
    assert made == Quick(1, "x", [5], d=2)
    assert made != Quick(2)
    assert repr(made) == "Quick(a=1, b='x', c=[5], d=2)"
    assert dataclasses.replace(made, a=3).c == [5]
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Usual).parameters)
    match made:
        case Quick(a, b):
            assert (a, b) == (1, "x")


def test_defaults_made_anew_are_not_shared() -> None:
    assert Quick(1).c is not Quick(1).c


def test_what_it_cannot_carry_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        a: int

        def __post_init__(self) -> None: ...

    @dataclass(frozen=True, slots=True)
    class Child(Usual):
        e: int = 0

    for kind in (Checked, Child):
        with pytest.raises(TypeError, match="no plain dataclass"):
            quick(kind)
