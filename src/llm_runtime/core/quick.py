"""Frozen dataclasses that cost no more to make than any others.

What `@dataclass(frozen=True)` writes into `__init__` goes through `object.__setattr__`, once per field,
which is most of the price of a request's many small records. Here the fields are set as plain
attributes while the object belongs to a twin class without the lock, and then it gets its own class.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")

_MISSING = dataclasses.MISSING


def quick(cls: type[T]) -> type[T]:
    """For a class decorated with `@dataclass(frozen=True, slots=True)`, directly above that decorator.

    Same signature, same behaviour, frozen from the moment it is made. Raises TypeError for what the
    trick does not carry: a `__post_init__`, a base with fields, fields that are not parameters.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if hasattr(cls, "__post_init__") or cls.__bases__ != (object,) or not all(f.init for f in fields):
        raise TypeError(f"{cls.__name__} is no plain dataclass")
    twin = type(f"{cls.__name__}InTheMaking", (object,), {"__slots__": cls.__dict__["__slots__"]})
    scope: dict[str, Any] = {"_become": object.__dict__["__class__"].__set__, "_twin": twin, "_cls": cls}
    positional, named, body = ["self"], list[str](), ["_become(self, _twin)"]
    for field in fields:
        name = field.name
        value = name
        parameter = name
        if field.default is not _MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not _MISSING:
            scope[f"_make_{name}"] = field.default_factory
            scope["_absent"] = _MISSING
            parameter = f"{name}=_absent"
            value = f"_make_{name}() if {name} is _absent else {name}"
        (named if field.kw_only else positional).append(parameter)
        body.append(f"self.{name} = {value}")
    body.append("self.__class__ = _cls")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    source = f"def __init__({parameters}):\n    " + "\n    ".join(body)
    exec(source, scope)  # noqa: S102 - as dataclasses themselves do; the names are the class's own
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**cls.__init__.__annotations__}
    cls.__init__ = made  # type: ignore[method-assign]
    return cls
