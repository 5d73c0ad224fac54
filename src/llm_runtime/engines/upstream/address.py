"""Where an upstream listens: a Unix socket or a TCP port, with or without TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

P = TypeVar("P", bound=asyncio.Protocol)

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Either unix_path or host and port. ssl_context: TLS, for TCP only.

    Never shown to clients: it names hosts and paths.
    """

    unix_path: str | None = None
    host: str = "localhost"
    port: int = 0
    ssl_context: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, ssl_context: ssl.SSLContext | None = None) -> Address:
        """From `unix:///path.sock`, `http://host:port` or `https://host[:port]`; a path is ignored.

        For https without a context the system's default one is made (blocking: it reads
        certificates). Raises ValueError for anything else.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(unix_path=parts.path)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"not an http, https or unix address: {url!r}")
        if parts.scheme == "https" and ssl_context is None:
            ssl_context = ssl.create_default_context()
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        return cls(None, parts.hostname, port, ssl_context if parts.scheme == "https" else None)

    @property
    def host_header(self) -> str:
        if self.unix_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = DEFAULT_PORTS["https" if self.ssl_context else "http"]
        return host if self.port == default else f"{host}:{self.port}"

    async def connect(self, factory: Callable[[], P]) -> P:
        """Tries every address of the host, IPv6 and IPv4. Raises OSError. Never uses a proxy."""
        loop = asyncio.get_running_loop()
        if self.unix_path is not None:
            _, protocol = await loop.create_unix_connection(factory, self.unix_path)
        else:
            _, protocol = await loop.create_connection(factory, self.host, self.port, ssl=self.ssl_context)
        return protocol
