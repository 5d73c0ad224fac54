"""A stub in a process of its own, so that its timing and the client's do not disturb each other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

import orjson

from llm_runtime.bench.stub_script import Script
from llm_runtime.core.errors import BackendError

START_TIMEOUT_S = 30.0


@asynccontextmanager
async def stub_process(script: Script) -> AsyncIterator[str]:
    """The URL of a stub that answers by this script. Raises BackendError if it does not start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llm_runtime.bench.stub", "--script", orjson.dumps(asdict(script)).decode(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise BackendError("the stub did not start")
        yield url
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
