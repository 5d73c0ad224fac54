from __future__ import annotations

import pytest

from llm_runtime.core.build import optimised


@pytest.mark.parametrize(
    ("configured_with", "prefix", "expected"),
    [
        ("'--prefix=/opt/python' '--enable-optimizations' '--with-lto'", "/opt/python", True),
        ("'--prefix=/home/me/.pyenv/versions/3.11.7' '--enable-shared'", "/home/me/.pyenv", False),
        ("'--prefix=/usr' '--enable-shared' '--without-ensurepip'", "/usr", True),
        (None, "C:\\Python311", None),
    ],
)
def test_whether_an_interpreter_was_optimised(
    configured_with: str | None, prefix: str, expected: bool | None
) -> None:
    assert optimised(configured_with, prefix) is expected
