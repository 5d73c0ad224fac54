"""A Ray cluster on this machine for the length of some runs: `deploy.ray_testbed`, started and commanded.

Needs an environment with Ray: this one, or that of `make ray-env` beside it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from llm_runtime.bench.launch import free_port
from llm_runtime.core.errors import BackendError, ConfigError
from llm_runtime.engines import proctable

ENVIRONMENTS = (".venv-ray",)
START_TIMEOUT_S = 300.0
COMMAND_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
TAIL_BYTES = 4000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def find_python() -> str:
    """An interpreter that has Ray and this project. Raises ConfigError."""
    if importlib.util.find_spec("ray") is not None:
        return sys.executable
    for name in ENVIRONMENTS:
        beside = Path(sys.prefix).with_name(name) / "bin" / "python"
        if beside.exists():
            return str(beside)
    raise ConfigError("this scenario needs Ray: run `make ray-env`, which makes .venv-ray")


class RayBed:
    """The running cluster. `command` from one task at a time."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self._process = process

    async def command(self, words: str) -> dict[str, Any]:
        """What the testbed answers. Raises BackendError where it does not."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(words.encode() + b"\n")
        await stdin.drain()
        return await self.answer(COMMAND_TIMEOUT_S)

    async def answer(self, timeout_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        async with asyncio.timeout(timeout_s):
            while line := await stdout.readline():
                if line.startswith(b"{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        raise BackendError("the Ray testbed ended")

    def cpu_s(self) -> float:
        """Processor time of every process of the cluster that lives, in seconds."""
        return cpu_s_of(self._process.pid)


def cpu_s_of(root: int) -> float:
    """Processor time of a process and all below it, in seconds; of those that live."""
    pids = [root, *proctable.descendants(root, proctable.table())]
    return sum(_cpu_ticks(pid) for pid in pids) / TICKS_PER_S


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


@asynccontextmanager
async def ray_bed(
    settings: Mapping[str, str],
    nodes: Sequence[int],
    environ: Mapping[str, str] | None = None,
    python: str | None = None,
) -> AsyncIterator[RayBed]:
    """nodes: engines that each node beside the head has room for. python: with Ray, this project and what the
    engine needs; None: see `find_python`. Raises BackendError with the end of its
    output when it does not get ready. At the end everything it started is gone."""
    port = free_port()
    words = [python or find_python(), "-m", "llm_runtime.deploy.ray_testbed", "--port", str(port)]
    words += [word for num_engines in nodes for word in ("--node", str(num_engines))]
    words += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        bed = RayBed(f"http://127.0.0.1:{port}", process)
        try:
            try:
                await bed.answer(START_TIMEOUT_S)
            except (BackendError, TimeoutError) as error:
                output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
                said = output.read().decode("utf-8", "replace").strip()
                raise BackendError(f"the Ray cluster did not get ready: {error}\n{said}") from error
            yield bed
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Politely by the end of its input; whatever is left of it is killed."""
    rows = proctable.table()
    below = proctable.descendants(process.pid, rows)
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
    for pid in below:
        row = proctable.read(pid)
        if row is not None and row.started == rows[pid].started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await process.wait()
