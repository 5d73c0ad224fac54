"""The settings as their types declare them: every leaf of the tree, found by walking the config types.

What the types cannot say comes from `settings_table`. Nothing here reads a source or validates.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llm_runtime.settings_row import Row
from llm_runtime.settings_table import ENV_PREFIX, SECTIONS, TABLE


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting as its type declares it.

    optional: None is a value (switched off or chosen by the program). plural: a tuple of strings.
    structured: a tuple of things with fields of their own, given as YAML. choices: the words it may be,
    empty where it is free.
    """

    name: str
    annotation: Any
    default: Any
    optional: bool
    plural: bool
    structured: bool
    choices: tuple[str, ...]

    @property
    def row(self) -> Row:
        return TABLE[self.name]

    @property
    def nested_variable(self) -> str:
        return ENV_PREFIX + self.name.replace(".", "__").upper()

    @property
    def flat_variable(self) -> str | None:
        flat = self.row.flat
        return None if flat is None else ENV_PREFIX + flat

    @property
    def variable(self) -> str:
        """The environment variable to recommend."""
        return self.flat_variable or self.nested_variable


@cache
def leaves() -> Mapping[str, Leaf]:
    """All settings by dotted name, in the order of the tree."""
    found = {leaf.name: leaf for name, section in SECTIONS.items() for leaf in _walk(name, section)}
    return types.MappingProxyType(found)


@cache
def variables() -> Mapping[str, Leaf]:
    """All environment variables that set something, flat and nested."""
    found: dict[str, Leaf] = {}
    for leaf in leaves().values():
        found[leaf.nested_variable] = leaf
        if leaf.flat_variable is not None:
            found[leaf.flat_variable] = leaf
    return types.MappingProxyType(found)


@cache
def flat_names() -> Mapping[str, Leaf]:
    """Flat names in lower case, as the command line takes them: `port`, `max_queue_size`."""
    return types.MappingProxyType(
        {leaf.row.flat.lower(): leaf for leaf in leaves().values() if leaf.row.flat is not None}
    )


def _walk(prefix: str, section: type) -> Iterator[Leaf]:
    hints = typing.get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        name, annotation = f"{prefix}.{field.name}", hints[field.name]
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            yield from _walk(name, annotation)
        else:
            yield _leaf(name, annotation, field.default)


def _leaf(name: str, annotation: Any, default: Any) -> Leaf:
    members = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
    inner = next(member for member in members if member is not type(None))
    origin = typing.get_origin(inner)
    structured = origin is tuple and dataclasses.is_dataclass(typing.get_args(inner)[0])
    return Leaf(
        name=name,
        annotation=annotation,
        default=default,
        optional=type(None) in members,
        plural=origin is tuple and not structured,
        structured=structured,
        choices=typing.get_args(inner) if origin is Literal else (),
    )


_UNIONS = (typing.Union, types.UnionType)
