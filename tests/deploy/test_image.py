"""The Dockerfile by its linter, and what no linter knows: what the build sees, who runs, for how long it may
take to stop. `scripts/try_image.py` runs its lines; continuous integration runs that."""

from __future__ import annotations

import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_runtime.settings import load_settings
from scripts.try_image import Stage, chain, check_libraries, ignored, last, settings, stages
from tests.deploy.places import DEPLOY, ROOT

DOCKERFILE = ROOT / "Dockerfile"
STAGES = stages(DOCKERFILE.read_text())
IMAGES = ("runtime", "bench", "cuda", "ray")
IGNORE = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]  # fmt: skip


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_shellcheck_like_options_are_set() -> None:
    script = DEPLOY / "container" / "build_steps.sh"
    assert "set -euo pipefail" in script.read_text()
    assert os.access(script, os.X_OK)
    done = subprocess.run([script, "no-such-step", "/nowhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "no such step: no-such-step\n")


def test_the_default_image_is_the_one_for_the_cpu() -> None:
    assert list(STAGES)[-1] == "runtime"


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_runs_as_a_user_of_no_rights(name: str) -> None:
    lines = chain(STAGES, name)
    assert last(lines, "USER").rest == "10001:10001"
    assert last(lines, "STOPSIGNAL").rest == "SIGTERM"
    for word in ("ENTRYPOINT", "CMD"):
        assert isinstance(last(lines, word).argv, list)


@pytest.mark.parametrize("name", ["runtime", "cuda"])
def test_a_server_says_how_it_is(name: str) -> None:
    check = last(chain(STAGES, name), "HEALTHCHECK").rest
    assert check.endswith('CMD ["llm-runtime-health"]')
    assert last(chain(STAGES, name), "ENTRYPOINT").argv == ["llm-runtime"]
    assert last(chain(STAGES, name), "CMD").argv == ["serve"]


def test_the_settings_of_the_images_are_settings() -> None:
    backends = {}
    for name in IMAGES:
        env = {
            key: value for key, value in settings(chain(STAGES, name), Path("/x")).items() if key != "PATH"
        }
        loaded = load_settings({}, {**env, "LLM_RUNTIME_API_KEYS": "sk-a"})
        assert loaded.server.host == "0.0.0.0"
        backends[name] = loaded.engines.backend
    assert backends["cuda"] == "vllm"
    assert backends["ray"] == "vllm-inprocess"


def test_no_image_holds_a_key() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"^(ARG|ENV).*(KEY|TOKEN|SECRET|PASSWORD)", text, re.MULTILINE)


def test_every_file_that_is_copied_exists_and_reaches_the_build() -> None:
    for name, stage in STAGES.items():
        for source in _copied(stage):
            assert (ROOT / source).exists(), (name, source)
            inside = [path for path in [ROOT / source, *(ROOT / source).rglob("*")] if path.is_file()]
            kept = [path for path in inside if not ignored(str(path.relative_to(ROOT)), IGNORE)]
            assert kept, (name, source)


def _copied(stage: Stage) -> Iterator[str]:
    for line in stage.lines:
        if line.word == "COPY" and not line.rest.startswith("--from="):
            yield from line.rest.split()[:-1]


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("src/llm_runtime/main.py", False),
        ("requirements/runtime.txt", False),
        ("deploy/container/build_steps.sh", False),
        ("pyproject.toml", False),
        ("deploy/monitoring/prometheus.yml", True),
        ("src/llm_runtime/__pycache__/main.cpython-311.pyc", True),
        (".env", True),
        (".git/config", True),
        (".venv/bin/python", True),
        ("tests/conftest.py", True),
        ("benchmarks/results/x.json", True),
    ],
)
def test_what_the_build_sees(path: str, verdict: bool) -> None:
    assert ignored(path, IGNORE) is verdict


@pytest.mark.parametrize(
    ("patterns", "path", "verdict"),
    [
        (["*"], "a/b/c", True),
        (["*", "!a/b"], "a/b/c", False),
        (["*", "!a/b"], "a/c", True),
        (["*", "!a", "a/b"], "a/b/c", True),
        (["*", "!a", "**/*.pyc"], "a/b/c.pyc", True),
        (["*.md"], "a/b.md", False),
        ([], "a", False),
    ],
)
def test_ignoring_is_what_docker_says_it_is(patterns: list[str], path: str, verdict: bool) -> None:
    assert ignored(path, patterns) is verdict


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="asks the dynamic linker of Linux")
def test_the_image_has_the_libraries_that_the_engine_needs() -> None:
    (engine,) = importlib.util.find_spec("xllamacpp").submodule_search_locations  # type: ignore[union-attr,misc]
    check_libraries(chain(STAGES, "runtime"), Path(engine))
    with pytest.raises(SystemExit, match="libgomp"):
        check_libraries([], Path(engine))


@contextmanager
def _answering(status: int) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_readiness(status: int, code: int) -> None:
    with _answering(status) as port:
        done = _health_check({"LLM_RUNTIME_PORT": str(port)})
    assert (done.returncode, done.stdout) == (code, f"{status} {{}}\n")


def _health_check(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(DEPLOY / "container" / "healthcheck.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=False)


def test_the_health_check_fails_where_nobody_listens() -> None:
    with _answering(200) as port:
        _health_check({"LLM_RUNTIME_PORT": str(port)})
    done = _health_check({"LLM_RUNTIME_PORT": str(port)})
    assert done.returncode == 1
    assert "refused" in done.stdout


@pytest.mark.vllm
def test_the_steps_on_top_of_vllm_change_nothing_of_it(tmp_path: Path) -> None:
    """With the vLLM of `make vllm-env` in place of the one in vLLM's image."""
    theirs = ROOT / ".venv-vllm"
    before = _files(theirs)
    for step in ("on-vllm", "project"):
        subprocess.run(
            [DEPLOY / "container" / "build_steps.sh", step, tmp_path / "env"],
            env={**os.environ, "PYTHON": str(theirs / "bin" / "python")}, check=True,
        )  # fmt: skip
    assert _files(theirs) == before
    code = "import llm_runtime, vllm; print(llm_runtime.__file__); print(vllm.__file__)"
    python = tmp_path / "env" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    ours, vllm = done.stdout.split()[-2:]
    assert ours.startswith(str(tmp_path / "env"))
    assert vllm.startswith(str(theirs))
    doctor = subprocess.run(
        [tmp_path / "env" / "bin" / "llm-runtime", "doctor"],
        env={**os.environ, "LLM_RUNTIME_BACKEND": "vllm"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"ok    engine    vllm: 0.32.0, by {python}" in doctor.stdout


def _files(folder: Path) -> set[tuple[str, int]]:
    return {
        (str(path), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
