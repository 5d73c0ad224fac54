"""`Backend` for Hugging Face Transformers: a supervised child that runs `generate()` for one request
after another. It is the control that batching is compared with, and serves what no other engine can."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import llm_runtime
from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import BackendInfo, Batching
from llm_runtime.engines.child_backend import ChildBackend, EngineHost, log_engine_line
from llm_runtime.engines.config import HfConfig
from llm_runtime.engines.hf.fields import check
from llm_runtime.engines.hf.host import CANNOT
from llm_runtime.engines.hf.life import HfLife
from llm_runtime.engines.process import EngineProcess, ProcessSpec, child_environment, scratch_directory
from llm_runtime.engines.threads import default_threads
from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.client import Upstream

NAME = "hf"
HOST_MODULE = "llm_runtime.engines.hf.host"
ENDPOINTS = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS})
PROBE_TIMEOUT_S = 30.0
NEIGHBOUR = ".venv-vllm"
"""vLLM's environment beside ours has Transformers as well."""


class HfBackend(ChildBackend[HfLife]):
    """One engine with one slot; see `ChildBackend` for who may call what.

    Its batching counts as continuous: it takes a request whenever it is free, and a micro-batch of one
    has nothing to wait for.
    """

    def __init__(
        self, config: HfConfig, host: EngineHost, *, model: str, weights: str, model_created: int
    ) -> None:
        """weights: a folder. Raises ConfigError for anything else."""
        if not Path(weights).is_dir():
            raise ConfigError(
                f"model.path = {weights!r} is no folder of this machine, and nothing is fetched while "
                f"serving: `llm-runtime models pull hf:{weights}` brings a model of the hub"
            )
        self._config = config
        self._host = host
        self._weights = weights
        info = BackendInfo(
            name=NAME,
            model=model,
            batching=Batching.CONTINUOUS,
            num_slots=1,
            context_tokens=None,
            endpoints=ENDPOINTS,
            model_created=model_created,
        )
        super().__init__(info, host.supervision, self._start_life)

    def check(self, request: RuntimeRequest) -> None:
        check(request.kind, request.body)

    async def _start_life(self) -> HfLife:
        """Starts a process and returns it ready. Leaves nothing behind when it raises."""
        python = find_python(self._config, self._host.environ)
        scratch = scratch_directory()
        socket_path = scratch / "engine.sock"
        process = await EngineProcess.start(
            ProcessSpec(
                name=NAME,
                command=(python, "-P", "-m", HOST_MODULE, *self._arguments(socket_path)),
                environment=_environment(scratch, self._host.environ),
                state_dir=self._host.state_dir,
                grace_s=self._host.supervision.stop_grace_s,
                scratch=scratch,
            ),
            on_line=log_engine_line(NAME),
        )
        life = HfLife(process, Upstream(Address(unix_path=str(socket_path))), self._host.clock)
        try:
            await life.become_ready(self._config.start_timeout_s)
        except BaseException:
            await life.stop(0.0)
            raise
        self.info = replace(self.info, context_tokens=life.context_tokens)
        return life

    def _arguments(self, socket_path: Path) -> tuple[str, ...]:
        config = self._config
        return (
            *("--socket", str(socket_path)),
            *("--model", self._weights),
            *("--name", self.info.model),
            *("--dtype", config.dtype),
            *("--device", config.device),
            *("--threads", str(config.n_threads or default_threads())),
        )


def installed(config: HfConfig, environ: Mapping[str, str]) -> str:
    """What the engine would be made of, in words; nothing of it is loaded. Blocks for a moment.

    Raises ConfigError, as a start would.
    """
    python = find_python(config, environ)
    command = (python, "-P", "-c", f"from {HOST_MODULE} import tell; tell()")
    try:
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.run(
                command,
                env=_environment(Path(folder), environ),
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"engines.hf.python: {python} cannot be run ({type(error).__name__})") from error
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        told = child.stdout.removeprefix(CANNOT) if child.stdout.startswith(CANNOT) else last
        raise ConfigError(told.strip())
    return f"{child.stdout.strip()}, by {python}"


def find_python(config: HfConfig, environ: Mapping[str, str]) -> str:
    """The interpreter to run: the one configured; ours, if it has Transformers; vLLM's beside ours.

    Raises ConfigError if the configured one is no program. Whether the one found has all it needs is
    the engine program's to say.
    """
    if config.python is not None:
        python = shutil.which(str(Path(config.python).expanduser()), path=environ.get("PATH"))
        if python is None:
            raise ConfigError(
                f"engines.hf.python = {config.python!r} is no program that can be run; name the Python of "
                "an environment with torch and transformers"
            )
        return python
    beside = Path(sys.prefix).with_name(NEIGHBOUR) / "bin" / "python"
    ours = importlib.util.find_spec("transformers") is not None
    return str(beside) if not ours and beside.exists() else sys.executable


def _environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """For a Python of another environment: of ours it sees this package, by a link in the empty folder,
    and not the libraries beside it."""
    (folder / "llm_runtime").symlink_to(Path(llm_runtime.__file__).parent)
    search_path = os.pathsep.join(filter(None, (str(folder), environ.get("PYTHONPATH"))))
    return child_environment(environ, {"PYTHONPATH": search_path})
