"""Who is measured, how each is started, and why it can't be where it can't.

Every peer gets one upstream, no retries, its default log level to a file, its metrics on, and, for
the routers, the cheapest routing policy they have. Only ours and LiteLLM check an API key: theirs
to do without is their advantage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.overhead.plan import PhaseName
from benchmarks.overhead.servers import Command, free_port
from llm_runtime import __version__

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".venv-peers"
COMPILED_PYTHON = ROOT / ".venv-compiled" / "bin" / "python"
KEY = "sk-overhead"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
OURS = "llm-runtime"
REWRITE = "llm-runtime-rewrite"
COMPILED = "llm-runtime-compiled"
ROUTER = "vllm-router"
SMG = "smg"
BASELINE = "fastapi-httpx"
BARE = "bare-relay"
DIRECT = "direct"
HOW_TO_GET = "make bench-peers"
COST: tuple[PhaseName, ...] = ("streams", "steps", "plain", "paced")
LATENCY: tuple[PhaseName, ...] = ("poisson",)


_TELL = """import json, platform
from llm_runtime.core.build import COMPILED, interpreter_optimised
print(json.dumps({"python": platform.python_version(), "python_optimised": interpreter_optimised(),
                  "compiled": COMPILED}))"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a participant is to serve, before which upstream, and a folder for its files."""

    port: int
    upstream: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Participant:
    """command: None for the stub itself. load_share: of the streams at once and of the arrival rate;
    a program at its limit would be measured queueing. phases: that make sense for it.
    package: whose version is reported. in_quick: whether a quick run includes it unasked.
    how_to_get: what makes the program.
    """

    name: str
    about: str
    command: Callable[[Place], Command] | None
    program: Path | None = None
    package: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = "stub"
    load_share: float = 1.0
    phases: tuple[PhaseName, ...] = COST + LATENCY
    in_quick: bool = True
    how_to_get: str = HOW_TO_GET

    @property
    def missing(self) -> str | None:
        """Why it can't be started; None if it can."""
        if self.program is None or self.program.exists():
            return None
        return f"not installed ({self.how_to_get})"

    @property
    def interpreter(self) -> Mapping[str, Any] | None:
        """Of ours: which Python runs it, and how both were built. Blocks for a child process."""
        if self.package is not None or self.program is None or self.missing is not None:
            return None
        done = subprocess.run([self.program, "-c", _TELL], check=True, capture_output=True)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    @property
    def version(self) -> str | None:
        """Of the package in the program's environment."""
        if self.package is None:
            return __version__ if self.program is not None else None
        if self.program is None:
            return None
        folders = self.program.parents[1].glob(f"lib*/python*/site-packages/{self.package}-*.dist-info")
        return next((folder.stem.rpartition("-")[2] for folder in folders), None)


def _ours(
    models: str, source: Path | None = None, python: Path = Path(sys.executable)
) -> Callable[[Place], Command]:
    """source: of another commit, in place of the one that `python` has."""

    def command(place: Place) -> Command:
        env = {
            "LLM_RUNTIME_BACKEND": "openai",
            "LLM_RUNTIME_UPSTREAM_URL": place.upstream,
            "LLM_RUNTIME_ENGINES__OPENAI__MODELS": models,
            "LLM_RUNTIME_API_KEYS": KEY,
        }
        if source is not None:
            env["PYTHONPATH"] = str(source)
        program = "import sys; from llm_runtime.cli import app; sys.exit(app())"
        argv = [str(python), "-c", program, "serve", "--host", "127.0.0.1", "--port", str(place.port)]
        return Command(argv, env, place.folder)

    return command


def _vllm_router(place: Place) -> Command:
    return Command(
        [str(PEERS / ROUTER / "bin" / "vllm-router"), "--worker-urls", place.upstream,
         "--host", "127.0.0.1", "--port", str(place.port), "--policy", "round_robin", "--disable-retries",
         "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"],
        cwd=place.folder,
    )  # fmt: skip


def _smg(place: Place) -> Command:
    return Command(
        [str(PEERS / SMG / "bin" / "smg"), "launch", "--worker-urls", place.upstream,
         "--host", "127.0.0.1", "--port", str(place.port), "--policy", "round_robin", "--disable-retries",
         "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
         "--worker-startup-check-interval", "1"],
        cwd=place.folder,
    )  # fmt: skip


def _litellm(place: Place) -> Command:
    upstream = {"model": "openai/stub", "api_base": f"{place.upstream}/v1", "api_key": "unused"}
    config = {
        "model_list": [{"model_name": "stub", "litellm_params": upstream}],
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0},
        "general_settings": {"master_key": KEY},
    }
    path = place.folder / "litellm.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return Command(
        [str(PEERS / "litellm" / "bin" / "litellm"), "--config", str(path), "--host", "127.0.0.1",
         "--port", str(place.port), "--num_workers", "1", "--telemetry", "False"],
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it fetches a price list at start
        place.folder,
    )  # fmt: skip


def _baseline(place: Place) -> Command:
    return Command(
        [str(PEERS / "baseline" / "bin" / "uvicorn"), "--app-dir", str(Path(__file__).parent),
         "baseline_proxy:app", "--host", "127.0.0.1", "--port", str(place.port)],
        {"UPSTREAM_URL": place.upstream},
        place.folder,
    )  # fmt: skip


def _bare(place: Place) -> Command:
    argv = [sys.executable, str(Path(__file__).parent / "bare_relay.py"), str(place.port)]
    return Command(argv, {"UPSTREAM_URL": place.upstream}, place.folder)


def known() -> dict[str, Participant]:
    """Every participant by name, installed or not, ours first."""
    python = Path(sys.executable)
    found = (
        Participant(OURS, "keys, limits, scheduler, router, metrics, usage, logs; relay mode",
                    _ours("stub"), python, headers=AUTHORIZED),
        Participant(REWRITE, "the same with a model alias, so that every event is rewritten",
                    _ours("alias=stub"), python, headers=AUTHORIZED, model="alias", phases=COST),
        Participant(COMPILED, "llm-runtime with its hot path compiled",
                    _ours("stub", python=COMPILED_PYTHON), COMPILED_PYTHON, headers=AUTHORIZED,
                    how_to_get="make compiled"),
        Participant(ROUTER, "Rust; round robin", _vllm_router, PEERS / ROUTER / "bin" / "vllm-router",
                    "vllm_router"),
        Participant(SMG, "Rust; round robin", _smg, PEERS / SMG / "bin" / "smg", "smg"),
        Participant("litellm", "Python; master key; an eighth of the streams",
                    _litellm, PEERS / "litellm" / "bin" / "litellm", "litellm",
                    headers=AUTHORIZED, load_share=1 / 8, in_quick=False),
        Participant(BASELINE, "FastAPI, pydantic, httpx, as usually written",
                    _baseline, PEERS / "baseline" / "bin" / "uvicorn", "httpx",
                    phases=("streams", "steps", "plain", *LATENCY)),  # 300 a second are more than it carries
        Participant(BARE, "Python without a gateway: bytes passed on, protocol to protocol, nothing else",
                    _bare, python, "uvloop", in_quick=False),
        Participant(DIRECT, "the stub without anything before it", None, phases=LATENCY),
    )  # fmt: skip
    return {participant.name: participant for participant in found}


def of_commit(commit: str, folder: Path) -> Participant:
    """Ours as it was, run by today's environment. Raises CalledProcessError for an unknown commit."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    short = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", commit], check=True,
                           capture_output=True, text=True).stdout.strip()  # fmt: skip
    return Participant(f"{OURS}@{short}", "ours as it was at that commit", _ours("stub", folder / "src"),
                       Path(sys.executable), headers=AUTHORIZED)  # fmt: skip
