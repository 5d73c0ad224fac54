"""Order: an engine takes a minute or more to start, so what kills or closes the shared one comes last."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place: dict[Path, int] = {}
    for position, item in enumerate(items):
        place.setdefault(item.path, position)
    items.sort(key=lambda item: (place[item.path], _harm(item.name) if item.path.parent == HERE else 0))


def _harm(name: str) -> int:
    return 2 if "closing" in name else int("killed" in name)
