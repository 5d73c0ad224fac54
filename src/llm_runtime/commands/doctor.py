"""`llm-runtime doctor`: whether this machine can serve what is configured, one line per question.

It starts nothing and changes nothing. What could crash (loading the engine) runs in a child.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from llm_runtime.core.build import COMPILED, interpreter_optimised
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.assets import BUILTIN_PREFIX, ModelStore
from llm_runtime.engines.config import EnginesConfig
from llm_runtime.engines.hf.backend import installed
from llm_runtime.engines.hub.ref import PREFIX as HUB_PREFIX
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.openai.target import Target
from llm_runtime.engines.registry import NEEDS_SAFETENSORS, NEEDS_WEIGHTS
from llm_runtime.engines.vllm.command import entry_point, extra_arguments
from llm_runtime.engines.vllm.core import installed_version
from llm_runtime.engines.weights import SafetensorsStore
from llm_runtime.settings import Settings, load_settings
from llm_runtime.web.config import ServerConfig

CHILD_TIMEOUT_S = 60.0
CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Finding:
    """ok: fine. warn: works, but not as one may think. fail: `serve` would not start."""

    subject: str
    status: Literal["ok", "warn", "fail"]
    text: str

    def __str__(self) -> str:
        return f"{self.status:<4}  {self.subject:<8}  {self.text}"


def examine(
    overrides: Mapping[str, str], environ: Mapping[str, str], config_file: str | None = None
) -> Iterator[Finding]:
    """Yields one finding per question, as soon as it is answered. Blocks for seconds."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield build(compiled=COMPILED, optimised=interpreter_optimised())
    try:
        settings = load_settings(overrides, environ, config_file)
    except ConfigError as error:
        yield Finding("settings", "fail", error.message.replace("\n", "; "))
        settings = Settings()
    else:
        yield _settings(settings)
    yield engine(settings.engines, environ)
    yield model(settings, ModelStore(environ))
    yield port(settings.server)
    yield gpu(settings.engines, environ)
    yield cores()


def build(*, compiled: bool, optimised: bool | None) -> Finding:
    """What a request costs hangs on these. optimised: None where the interpreter does not say."""
    how = "compiled" if compiled else "pure Python (`make compiled` makes the other)"
    if optimised is False:
        return Finding("build", "warn", f"{how}; the interpreter was built without --enable-optimizations")
    return Finding("build", "ok", f"{how}; {'optimised' if optimised else 'unknown'} interpreter")


def _settings(settings: Settings) -> Finding:
    if settings.warnings:
        return Finding("settings", "warn", "; ".join(settings.warnings))
    return Finding("settings", "ok", "`llm-runtime config` shows them")


def engine(engines: EnginesConfig, environ: Mapping[str, str]) -> Finding:
    """Whether the engine's program can be loaded here."""
    if engines.backend == "mock":
        return Finding("engine", "ok", "mock: built in")
    if engines.backend == "openai":
        return upstream(engines)
    if engines.backend in ("vllm", "vllm-inprocess"):
        return vllm(engines, environ)
    if engines.backend == "hf":
        return transformers(engines, environ)
    if binary := engines.llama_cpp.server_binary:
        if shutil.which(binary, path=environ.get("PATH")):
            return Finding("engine", "ok", f"llama.cpp: {binary}")
        return Finding("engine", "fail", f"engines.llama_cpp.server_binary = {binary!r} is no program")
    return _importable("xllamacpp", environ)


def upstream(engines: EnginesConfig) -> Finding:
    """Whether the upstream's address makes sense, or those of all; nothing is sent there."""
    try:
        names = [Target.of(one).name for one in engines.openai.each]
    except ConfigError as error:
        return Finding("engine", "fail", error.message)
    return Finding("engine", "ok", f"openai: {', '.join(names)}, not asked")


def vllm(engines: EnginesConfig, environ: Mapping[str, str]) -> Finding:
    """Whether vLLM is where it would be started; it is looked for, not loaded."""
    try:
        extra_arguments(engines.vllm)
        if engines.backend == "vllm-inprocess":
            return Finding("engine", "ok", f"vllm-inprocess: vLLM {installed_version()}")
        entry = asyncio.run(entry_point(engines.vllm, environ))
    except ConfigError as error:
        return Finding("engine", "fail", error.message)
    if shutil.which(entry.words[0], path=environ.get("PATH")) is None:
        return Finding("engine", "fail", f"engines.vllm.command: {entry.words[0]!r} is no program")
    version = ".".join(map(str, entry.version)) or "of unknown version"
    return Finding("engine", "ok", f"vllm: {version}, by {' '.join(entry.words)}")


def transformers(engines: EnginesConfig, environ: Mapping[str, str]) -> Finding:
    """Whether the Python that would run Transformers has what it needs; nothing is loaded."""
    try:
        return Finding("engine", "ok", f"hf: {installed(engines.hf, environ)}")
    except ConfigError as error:
        return Finding("engine", "fail", error.message)


def _importable(module: str, environ: Mapping[str, str]) -> Finding:
    command = [sys.executable, "-c", f"import {module}"]
    try:
        child = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("engine", "fail", f"{module} did not load in {CHILD_TIMEOUT_S:.0f} s")
    if child.returncode == 0:
        return Finding("engine", "ok", f"llama.cpp: {module} {metadata.version(module)}")
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return Finding(
            "engine", "fail", f"{module} dies of {name} when loaded: it is not built for this processor"
        )
    reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Finding("engine", "fail", f"{module} cannot be loaded: {reason}")


def model(settings: Settings, store: ModelStore) -> Finding:
    """Whether the weights are here and, for the builtin model, intact."""
    if settings.engines.backend in NEEDS_SAFETENSORS:
        return _safetensors(settings.model.path, store)
    if settings.engines.backend not in NEEDS_WEIGHTS:
        return Finding("model", "ok", f"{settings.engines.backend}: needs no file here")
    ref = settings.model.path
    try:
        found = store.find(ref)
        if found is None:
            return Finding(
                "model", "warn", f"{ref} is fetched at the first start; or: llm-runtime models pull"
            )
        problem = store.mismatch(ref)
    except ConfigError as error:
        return Finding("model", "fail", error.message)
    if problem:
        return Finding("model", "fail", f"{problem}; remove it, then: llm-runtime models pull")
    return Finding("model", "ok", f"{found} ({found.stat().st_size / 1e6:,.1f} MB)")


def _safetensors(ref: str, store: ModelStore) -> Finding:
    if not ref.startswith((BUILTIN_PREFIX, HUB_PREFIX)):
        return Finding("model", "ok", f"{ref}: read by the engine")
    try:
        if ref.startswith(HUB_PREFIX):
            return Finding("model", "ok", str(store.hub.demand(HubRef.parse(ref))))
        folder = SafetensorsStore({}, models=store).find(ref)
    except ConfigError as error:
        return Finding("model", "fail", error.message)
    if folder is None:
        hint = "is converted at the first start; or: llm-runtime models convert"
        return Finding("model", "warn", f"{ref} {hint}")
    return Finding("model", "ok", str(folder))


def port(server: ServerConfig) -> Finding:
    """Whether the address can be bound."""
    address = f"{server.host}:{server.port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Finding("port", "fail", f"{address} is taken; stop what listens there, or use --port")
        return Finding("port", "fail", f"{address} cannot be bound: {error.strerror}")
    return Finding("port", "ok", f"{address} is free")


def gpu(engines: EnginesConfig, environ: Mapping[str, str]) -> Finding:
    """Which GPUs the driver knows of."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    names = _gpu_names(program) if program else []
    if names:
        return Finding("gpu", "ok", ", ".join(names))
    if engines.llama_cpp.n_gpu_layers:
        return Finding("gpu", "warn", "none found, so engines.llama_cpp.n_gpu_layers has no effect")
    return Finding("gpu", "ok", "none found: engines run on the processor")


def _gpu_names(program: str) -> list[str]:
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in child.stdout.splitlines() if line.strip()]


def cores(cpu_max: Path = CGROUP_CPU_MAX) -> Finding:
    """How many cores this process may use; a container's share can be less than it sees."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _cgroup_cores(cpu_max)
    if share is not None and share < usable:
        return Finding(
            "cores", "warn", f"{usable} seen, {share:g} allowed by the cgroup: set LLM_RUNTIME_N_THREADS"
        )
    if usable == 1:
        return Finding("cores", "warn", "1: the engine and the server share it")
    return Finding("cores", "ok", str(usable))


def _cgroup_cores(cpu_max: Path) -> float | None:
    try:
        quota, period = cpu_max.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such limit
        return None
