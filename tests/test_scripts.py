"""The development checks: each must fail where it should, and the generated page must be fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_runtime.settings_leaves import leaves

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("num_lines", "code", "told"), [(300, 0, ""), (301, 0, "over 300"), (401, 1, "split it")]
)
def test_a_long_module_is_mentioned_and_a_longer_one_fails(
    num_lines: int, code: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("x = 1\n" * num_lines)
    result = run("check_module_size.py", str(tmp_path))
    assert result.returncode == code
    assert told in result.stdout + result.stderr


def test_the_configuration_page_is_fresh_and_has_every_setting() -> None:
    result = run("config_docs.py", "--check")
    assert result.returncode == 0, result.stderr
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for leaf in leaves().values():
        assert f"| `{leaf.name}` | `{leaf.variable}` |" in page
