"""Every command of the README is run: here, or by continuous integration (`make` targets, smoke.py)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL
from tests.e2e.conftest import MODEL, Server, serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DEFAULT_URL = "http://127.0.0.1:8000"
RUN_BY_CI = {"make serve", "make test", "make check", "make help"}
RUN_HERE = {
    "llm-runtime chat",
    "llm-runtime serve --model",
    "LLM_RUNTIME_BACKEND=mock llm-runtime serve",
    "curl",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    joined = "\n".join(blocks("bash")).replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in joined.splitlines()]
    return [line.replace(".venv/bin/", "") for line in lines if line]


def test_no_command_is_left_unrun() -> None:
    for command in commands():
        assert command in RUN_BY_CI or any(command.startswith(start) for start in RUN_HERE), command


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_ci_runs_what_it_is_said_to_run() -> None:
    ci = (ROOT / ".ci/run").read_text() + (ROOT / "scripts/smoke.py").read_text()
    for command in RUN_BY_CI - {"make help", "make serve"}:
        assert command in ci
    assert '["make", "serve"]' in ci
    assert subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, check=True).stdout


def test_curl(server: Server) -> None:
    (command,) = [command for command in commands() if command.startswith("curl")]
    arguments = shlex.split(command.replace(DEFAULT_URL, server.url))
    done = subprocess.run([*arguments, "-sS"], capture_output=True, text=True, timeout=60, check=True)
    assert '"content":' in done.stdout
    assert done.stdout.rstrip().endswith("data: [DONE]")


def test_python(server: Server) -> None:
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", code.replace(DEFAULT_URL, server.url)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip()


def test_chat(server: Server) -> None:
    command = shlex.split(next(c for c in commands() if c.startswith("llm-runtime chat")))
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [str(program), *command[1:], "--url", server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip()


def test_serve_a_model_by_path(tmp_path: Path) -> None:
    path = tmp_path / "my-model.gguf"
    path.symlink_to(ModelStore(os.environ).ensure(BUILTIN_MODEL))
    with serving(tmp_path, "--model", str(path)) as server:
        server.wait_ready()
        assert server.log.read_text().count("my-model")


def test_serve_the_mock(tmp_path: Path) -> None:
    with serving(tmp_path, LLM_RUNTIME_BACKEND="mock") as server:
        server.wait_ready()
    assert MODEL not in server.log.read_text()
