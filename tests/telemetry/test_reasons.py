"""Every reason that the source gives an error has a label of its own; none is lost in "other"."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import llm_runtime
from llm_runtime.telemetry.labels import Labels
from tests.support.http import connected
from tests.support.server import serve

SOURCES = Path(llm_runtime.__file__).parent
NOT_ERRORS = {"bench"}
"""Packages whose `reason=` is something else."""


def reasons_given() -> Iterator[tuple[str, str]]:
    """Words given as `reason=` in a call, each with its file."""
    for path in sorted(SOURCES.rglob("*.py")):
        where = path.relative_to(SOURCES)
        if where.parts[0] in NOT_ERRORS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    value = keyword.value
                    if keyword.arg == "reason" and isinstance(value, ast.Constant) and value.value:
                        yield str(value.value), str(where)


def test_each_reason_of_the_source_has_a_label() -> None:
    labels = Labels(())
    found = set(reasons_given())
    assert {"array_too_long", "empty_array", "invalid_type", "invalid_http"} <= {word for word, _ in found}
    lost = {(word, where) for word, where in found if labels.reason(word) == "other"}
    assert lost == set()


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (b"GARBLE / HTTP/1.1\r\nhost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000, 431, "headers_too_large"),
    ],
)
async def test_what_never_reaches_the_application_is_counted(raw: bytes, status: int, reason: str) -> None:
    async with serve() as server, connected(server.port) as connection:
        await connection.send(raw)
        assert (await connection.reply()).status == status
        assert server.recorder.refusals == [("other", status, reason)]
