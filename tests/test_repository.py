"""What a clone must not carry."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SYMLINK = "120000"


def test_no_tracked_file_is_a_link() -> None:
    """A link made on one machine (an environment, a cache) points nowhere, or at itself, on the next."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a Git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    assert len(listed) > 100
    assert [entry for entry in listed if entry.startswith(SYMLINK)] == []
