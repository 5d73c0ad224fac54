"""`llm-runtime config`: the effective settings as YAML, each with where it comes from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from llm_runtime.settings import Settings
from llm_runtime.settings_leaves import Leaf, leaves

HIDDEN = "***"


def render(settings: Settings) -> Iterator[str]:
    """Lines of a YAML file that could be loaded again, but for the secrets, which are masked."""
    open_sections: list[str] = []
    lines: list[tuple[str, str]] = []
    for leaf in leaves().values():
        *sections, key = leaf.name.split(".")
        for depth, section in enumerate(sections):
            if open_sections[depth : depth + 1] != [section]:
                open_sections[depth:] = [section]
                lines.append((f"{'  ' * depth}{section}:", ""))
        indent = "  " * len(sections)
        lines.append((f"{indent}{key}: {_value(leaf, settings)}", settings.origin(leaf.name)))
    width = max(len(text) for text, _ in lines)
    for text, origin in lines:
        yield f"{text:<{width}}  # {origin}" if origin else text


def _value(leaf: Leaf, settings: Settings) -> str:
    value: Any = leaf.row.shown(settings.value(leaf.name))
    if leaf.structured:
        value = [_masked(dataclasses.asdict(item)) for item in value]
    elif leaf.row.secret:
        value = [HIDDEN] * len(value) if leaf.plural else HIDDEN
    return json.dumps(value, ensure_ascii=False)


def _masked(item: dict[str, Any]) -> dict[str, Any]:
    return {key: [HIDDEN] * len(value) if key == "keys" else value for key, value in item.items()}
