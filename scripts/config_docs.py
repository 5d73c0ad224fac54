"""Writes the tables of docs/configuration.md from the settings' types; with --check only compares.

The words around the tables are written by hand; only what stands between the two markers is replaced.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MinLen

from llm_runtime.settings_leaves import Leaf, leaves
from llm_runtime.settings_table import SECTIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- settings: written by `make docs`, do not edit by hand -->\n"
END = "<!-- end of settings -->\n"

_SIGNS = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt"))
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}


def render() -> str:
    """The tables, one per section, in Markdown."""
    return "\n".join(line for section in SECTIONS for line in _section(section)) + "\n"


def _section(section: str) -> Iterator[str]:
    yield f"\n### {section}\n"
    yield "| setting | variable | type | default | meaning |"
    yield "|---|---|---|---|---|"
    for leaf in leaves().values():
        if leaf.name.startswith(f"{section}."):
            cells = (f"`{leaf.name}`", f"`{leaf.variable}`", kind(leaf), default(leaf), leaf.row.meaning)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def kind(leaf: Leaf) -> str:
    """The type in words, with its bounds: "integer, ≥ 1, or `none`"."""
    off = ", or `none`" if leaf.optional else ""
    if leaf.choices:
        return ", ".join(f"`{choice}`" for choice in leaf.choices) + off
    if leaf.plural:
        return "list of texts" + off
    if leaf.structured:
        return "list of tenants" + off
    inner = next((arg for arg in _members(leaf.annotation) if arg is not type(None)), leaf.annotation)
    base, *constraints = typing.get_args(inner) if hasattr(inner, "__metadata__") else (inner,)
    return ", ".join([_WORDS[base], *map(_bound, constraints)]) + off


def _members(annotation: Any) -> tuple[Any, ...]:
    return () if hasattr(annotation, "__metadata__") else typing.get_args(annotation)


def _bound(constraint: object) -> str:
    if isinstance(constraint, MinLen):
        return "not empty"
    for cls, sign, attribute in _SIGNS:
        if isinstance(constraint, cls):
            return f"{sign} {getattr(constraint, attribute):,}"
    raise TypeError(f"no words for the constraint {constraint!r}")


def default(leaf: Leaf) -> str:
    value = leaf.default
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = before + BEGIN + render() + "\n" + END + after
    if fresh == text:
        return 0
    if "--check" in arguments:
        sys.stderr.write("docs/configuration.md is not what the settings are; run: make docs\n")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
