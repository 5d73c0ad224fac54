"""The load client: a connection per request in flight, kept for the next one, and never a queue.

Connections and HTTP are `engines.upstream`'s. A connection that turns out to be closed before any
byte came is replaced once; the time that takes stays in the request's latency, and it is counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from llm_runtime.bench.config import Target
from llm_runtime.bench.exchange import LoadExchange
from llm_runtime.core.errors import BackendError, BackendUnavailable, ConfigError
from llm_runtime.engines.upstream import Address, Exchange, Limits
from llm_runtime.engines.upstream.pool import Pool

IDLE_S = 2.0
"""Well below the keep-alive of any server, so that few requests meet a connection just closed."""
FETCH_TIMEOUT_S = 10.0


class LoadClient:
    """Owned by one run, used from its loop and only inside its `async with`."""

    def __init__(self, target: Target) -> None:
        """Raises ConfigError for a URL that is none."""
        try:
            self._address = Address.parse(target.url)
        except ValueError as error:
            text = f"{target.url} is no address of a server; it looks like http://127.0.0.1:8000"
            raise ConfigError(text) from error
        is_unix = target.url.startswith("unix:")
        self._prefix = "" if is_unix else urlsplit(target.url).path.rstrip("/").removesuffix("/v1")
        self._limits = Limits(connect_timeout_s=target.connect_timeout_s, idle_s=IDLE_S)
        self._fixed = {"host": self._address.host_header, "user-agent": "llm-runtime-bench"}
        self._fetch_headers = dict(target.headers)
        if target.api_key:
            self._fetch_headers["authorization"] = f"Bearer {target.api_key}"
        self._pool: Pool | None = None

    @property
    def num_connects(self) -> int:
        return self._opened.num_connects

    @property
    def num_retries(self) -> int:
        return self._opened.num_retries

    def send(
        self, path: str, body: bytes, headers: Mapping[str, str], *, wants_stream: bool, keep_text: bool
    ) -> LoadExchange:
        """Sends a POST now, or as soon as its connection stands. Never raises for the server's sake."""
        kind = "completions" if path.endswith("/v1/completions") else "chat"
        payload = self._payload("POST", self._prefix + path, body, headers)
        exchange = LoadExchange(payload, kind=kind, wants_stream=wants_stream, keep_text=keep_text)
        self._opened.start(exchange)
        return exchange

    async def fetch(self, path: str, accept: str = "application/json") -> bytes | None:
        """The body of a GET; None unless it is answered with 200 within 10 s."""
        headers = {**self._fetch_headers, "accept": accept}
        exchange = Exchange(self._payload("GET", self._prefix + path, None, headers), None)
        self._opened.start(exchange)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                await exchange.head()
                body = await exchange.read_all()
        except (BackendError, TimeoutError):
            return None
        finally:
            exchange.abort()
        return body if exchange.status == 200 else None

    async def fetch_json(self, path: str) -> Any:
        """As `fetch`; None also for a body that is not JSON."""
        body = await self.fetch(path)
        try:
            return None if body is None else orjson.loads(body)
        except ValueError:
            return None

    async def first_model(self) -> str:
        """The id of the first model the server lists. Raises BackendError if it lists none."""
        listed = await self.fetch_json("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (TypeError, KeyError, IndexError) as error:
            raise BackendError("the server lists no model: name one with --model") from error

    async def __aenter__(self) -> Self:
        """Raises BackendUnavailable when no server answers there."""
        self._pool = Pool(await self._reached(), self._limits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    @property
    def _opened(self) -> Pool:
        assert self._pool is not None, "used outside its `async with`"
        return self._pool

    async def _reached(self) -> Address:
        """The address with the host's name looked up, so that no request waits for a resolver.

        Under TLS the name stays: certificates are made out to names.
        """
        given = self._address
        candidates = [given]
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                if given.unix_path is None and given.ssl_context is None:
                    loop = asyncio.get_running_loop()
                    found = await loop.getaddrinfo(given.host, given.port, type=socket.SOCK_STREAM)
                    candidates = [Address(host=str(place[0]), port=given.port) for *_, place in found]
                return await _first_reachable(candidates)
        except (OSError, TimeoutError) as error:
            where = given.unix_path or given.host_header
            raise BackendUnavailable(f"no server answers at {where}: {error or 'timed out'}") from error

    def _payload(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**self._fixed, **headers}.items()]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        if any("\r" in line or "\n" in line for line in lines):
            raise ConfigError("a header must not contain a line end")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


async def _first_reachable(candidates: list[Address]) -> Address:
    """Raises the last candidate's OSError when none accepts a connection."""
    for position, candidate in enumerate(candidates, start=1):
        try:
            protocol = await candidate.connect(_Probe)
        except OSError:
            if position == len(candidates):
                raise
        else:
            protocol.close()
            return candidate
    raise OSError("the name has no address")


class _Probe(asyncio.Protocol):
    """Connects and says goodbye."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        self._transport.close()
