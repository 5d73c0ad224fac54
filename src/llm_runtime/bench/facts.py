"""Where and with what a run was made: machine, versions, commit, GPU; and what the server says of itself.

No host name, no user, no path of this machine: results are meant to be published.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from llm_runtime import __file__ as package_file
from llm_runtime import __version__
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.core.build import COMPILED, interpreter_optimised
from llm_runtime.core.errors import BackendUnavailable

PACKAGES = ("numpy", "httptools", "orjson", "xllamacpp")
RESULTS = "benchmarks/results"
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Commit:
    """id: None outside a repository. dirty: whether tracked files differ from it, other than results, which a
    run before this one may have written."""

    id: str | None
    dirty: bool | None


def commit() -> Commit:
    """Of the checkout this package runs from. Blocks for a child process."""
    head = git("rev-parse", "HEAD")
    if head is None:
        return Commit(None, None)
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){RESULTS}")
    return Commit(head, None if changed is None else bool(changed))


def git(*arguments: str) -> str | None:
    """Output of git in the checkout this package runs from; None without git or checkout."""
    root = Path(package_file).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],  # noqa: S607
            capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def environment() -> dict[str, Any]:
    """Of the client's side, as it was when this process first asked. Blocks for tens of milliseconds."""
    state = commit()
    return {
        "llm_runtime": __version__,
        "commit": state.id,
        "dirty": state.dirty,
        "python": platform.python_version(),
        "python_optimised": interpreter_optimised(),
        "compiled": COMPILED,
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
    }


async def server_facts(client: LoadClient) -> dict[str, Any]:
    """What the target tells without being asked for much; None for what it doesn't have."""
    paths = {"version": "/version", "load": "/load", "metrics": "/metrics"}
    answers = await asyncio.gather(*(client.fetch_json(path) for path in paths.values()))
    told: dict[str, Any] = dict(zip(paths, answers, strict=True))
    models = await client.fetch_json("/v1/models")
    told["models"] = models.get("data") if isinstance(models, dict) else None
    return {key: without_folders(value) for key, value in told.items()}


async def versions_beside(urls: Sequence[str]) -> dict[str, Any]:
    """What `/version` says at the servers of these pages, by host and port: of the engine behind a gateway,
    mostly. None where nobody says anything."""
    places = dict.fromkeys(urlsplit(url).netloc for url in urls)
    schemes = {urlsplit(url).netloc: urlsplit(url).scheme for url in urls}
    answers = await asyncio.gather(*(_version_at(f"{schemes[place]}://{place}") for place in places))
    return dict(zip((place.rpartition("@")[2] for place in places), answers, strict=True))


async def _version_at(url: str) -> Any:
    try:
        async with LoadClient(Target(url)) as client:
            return without_folders(await client.fetch_json("/version"))
    except BackendUnavailable:
        return None


def without_folders(value: Any) -> Any:
    """The same with every text that is an absolute path cut to its last part."""
    if isinstance(value, str):
        return PurePath(value).name if value.startswith("/") else value
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    """Of the client's machine; the server's may be another."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": str(pynvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": driver,
            }
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
