"""The runtime with its embedded engine, and the engine's own word past the runtime: for scenarios that ask
what happens inside."""

from __future__ import annotations

import asyncio
import shlex
import socket
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.launch import launched
from llm_runtime.core.errors import BackendError
from llm_runtime.engines.llama_cpp.command import API_KEY_VARIABLE

LOOK_EVERY_S = 0.01
"""Looks cost the engine and its machine something; this often they take a few per cent of one core."""

SEEN_TIMEOUT_S = 20.0
TAG_FIELD = "n_discard"  # the runtime marks every request in it
MAX_REPLY_BYTES = 1 << 22


@asynccontextmanager
async def embedded_engine(settings: Mapping[str, object]) -> AsyncIterator[tuple[str, Engine]]:
    """The URL of a runtime of our own, ready, and its engine. Its scratch files lie in a folder of ours,
    which is how the engine's socket is found. Raises what `launched` raises."""
    program = shlex.quote(str(Path(sys.executable).with_name("llm-runtime")))
    options = " ".join(f"-o {name}={value}" for name, value in settings.items())
    with tempfile.TemporaryDirectory() as folder:
        command = f"env TMPDIR={shlex.quote(folder)} {program} serve --port {{port}} {options}"
        async with launched(command, {}, "/health/ready") as url:
            yield url, Engine(Path(folder))


class Engine:
    """Asked on its socket, without the runtime. A restarted engine is found again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[str, str] = {}

    def pid(self) -> int:
        """Of the process that listens. Raises BackendError when there is none. Linux."""
        for path in self._folder.glob("*/engine.sock"):
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(path))
                except OSError:
                    continue
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                pid: int = struct.unpack("3i", credentials)[0]
                return pid
        raise BackendError("the engine does not listen")

    def url(self) -> str:
        """Where it listens now."""
        return f"unix://{next(self._folder.glob('*/engine.sock'))}"

    def key(self) -> str:
        """What the runtime gave it to know its own by; from the process's environment."""
        url = self.url()
        if url not in self._keys:  # each engine listens somewhere else
            entries = Path(f"/proc/{self.pid()}/environ").read_bytes().split(b"\0")
            values = dict(entry.partition(b"=")[::2] for entry in entries)
            self._keys[url] = values[API_KEY_VARIABLE.encode()].decode()
        return self._keys[url]

    async def busy(self) -> set[int]:
        """The marks of the requests that are in its slots."""
        reader, writer = await asyncio.open_unix_connection(self.url().removeprefix("unix://"))
        try:
            head = f"GET /slots HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer {self.key()}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode("ascii"))
            status, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if b" 200 " not in status.split(b"\r\n")[0]:
            raise BackendError("the engine does not list its slots")
        rows: list[dict[str, Any]] = orjson.loads(body)
        return {row["params"][TAG_FIELD] for row in rows if row["is_processing"]}

    async def newcomer(self, known: set[int]) -> int:
        """The mark of a request that was not there before. Raises TimeoutError."""
        return min(await self.until(lambda busy: bool(busy - known)) - known)

    async def until(self, seen: Callable[[set[int]], bool]) -> set[int]:
        """The marks in its slots, once they are as wanted: told after it is so, by at most the time
        between two looks and that of an answer. Raises TimeoutError."""
        async with asyncio.timeout(SEEN_TIMEOUT_S):
            while True:
                busy = await self.busy()
                if seen(busy):
                    return busy
                await asyncio.sleep(LOOK_EVERY_S)


@asynccontextmanager
async def asking(url: str, text: str, fields: Mapping[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent a chat request; at the end of the block it closes its connection hard."""
    address = urlsplit(url)
    body = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], **fields})
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=MAX_REPLY_BYTES)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode("ascii") + body)
        yield reader
    finally:
        writer.transport.abort()
