"""The unit file by systemd's own checks."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY
from tests.deploy.test_compose import NEEDED_TO_STOP_S

UNIT = DEPLOY / "systemd" / "llm-runtime.service"
INSTALLED = "/opt/llm-runtime/bin/llm-runtime"
MAX_EXPOSURE = 25  # in tenths: 2.5 of 10

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (apt: systemd)"
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the program that is here in place of the one that will be there."""
    text = UNIT.read_text()
    assert INSTALLED in text
    path = tmp_path / UNIT.name
    path.write_text(text.replace(INSTALLED, str(Path(sys.executable).with_name("llm-runtime"))))
    return path


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_systemd_would_notice_a_wrong_line(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=gentle"))
    assert "kill mode" in analyze("verify", "--man=no", unit).stderr


@needs_systemd
def test_the_service_is_confined(unit: Path) -> None:
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={MAX_EXPOSURE}", unit)
    assert done.returncode == 0, done.stdout[-200:]


def test_there_is_time_to_drain_and_only_the_server_is_told() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    service = parser["Service"]
    assert int(service["TimeoutStopSec"]) > NEEDED_TO_STOP_S
    assert service["KillMode"] == "mixed"
    assert service["ExecStart"] == f"{INSTALLED} serve"
    assert re.fullmatch(r"-/etc/llm-runtime/environment", service["EnvironmentFile"])
