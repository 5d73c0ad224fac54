"""The official client, its current major and the one before, against the real engine, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL, Server

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).with_name("sdk_script.py")
PREVIOUS_MAJOR = Path(sys.prefix) / "openai2"
"""`make setup-dev` puts it there."""


@pytest.mark.parametrize(("folder", "major"), [(None, "3"), (PREVIOUS_MAJOR, "2")])
def test_client(server: Server, folder: Path | None, major: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(folder) if folder else ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"{server.url}/v1", MODEL],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split(".")[0] == major
