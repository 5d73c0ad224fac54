"""`Upstream`: requests to one engine or one OpenAI-compatible server.

No redirects, no cookies, no decompression, no proxies from the environment, no retries that could
repeat work. Time limits besides connecting are the caller's: it pokes or aborts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.upstream.pool import Pool
from llm_runtime.engines.upstream.protocol import Limits

DEFAULT_LIMITS = Limits()
MAX_HEADS = 100
"""Of requests whose beginning is kept; an engine has a handful of paths."""

_PATH = re.compile(r"/[^\x00- ]*")


class Upstream:
    """Owned by the backend that opened it; used from the loop's thread. `async with` or `aclose`."""

    def __init__(
        self, address: Address, headers: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """headers: sent with every request, for example the authorization."""
        fixed = {"host": address.host_header, "accept": "*/*", "accept-encoding": "identity"}
        self._fixed = _encode({**fixed, **(headers or {})})
        self._heads: dict[tuple[str, str], bytes] = {}
        self._pool = Pool(address, limits)

    @property
    def num_connects(self) -> int:
        return self._pool.num_connects

    @property
    def num_retries(self) -> int:
        return self._pool.num_retries

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        same_process: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Sends a request, at once if a connection is free; never blocks, never raises for the
        upstream's sake: `Exchange.head` and `Exchange.read` do.

        body: JSON. same_process: whether the engine that had the request still lives, asked before
        the one retry on a stale connection; without it such a retry is always made.
        """
        exchange = Exchange(self._request_bytes(method, path, body, headers), same_process)
        self._pool.start(exchange)
        return exchange

    async def aclose(self) -> None:
        """Aborts what is under way and closes all connections. Idempotent."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _request_bytes(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> bytes:
        head = self._heads.get((method, path))
        if head is None:
            head = self._head(method, path)
        parts = [head]
        if headers:
            parts.append(_encode(headers))
        if body is not None:
            parts.append(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
            parts.append(body)
        else:
            parts.append(b"\r\n")
        return b"".join(parts)

    def _head(self, method: str, path: str) -> bytes:
        if _PATH.fullmatch(path) is None:
            raise ValueError(f"not a request path: {path!r}")
        head = f"{method} {path} HTTP/1.1\r\n".encode("ascii") + self._fixed
        if len(self._heads) < MAX_HEADS:
            self._heads[method, path] = head
        return head


def _encode(headers: Mapping[str, str]) -> bytes:
    lines = []
    for name, value in headers.items():
        line = f"{name}: {value}"
        if "\r" in line or "\n" in line or "\0" in line:
            raise ValueError(f"a header must not contain a line end: {name!r}")
        lines.append(line + "\r\n")
    return "".join(lines).encode("latin-1")
