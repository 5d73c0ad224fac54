"""Settings of the HTTP surface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """api_keys: accepted bearer keys; empty: no authentication unless tenants have keys.

    admin_api_keys: for `/admin/...`; empty: there is no such path.

    allow_unauthenticated: binding another address than loopback without keys is refused unless this
    says so. keep_alive_s: idle client connections stay open longer than common balancers' 60 s.
    cors_allow_origins: empty: CORS off.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = 8000
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    cors_allow_origins: tuple[str, ...] = ()
    max_body_bytes: Annotated[int, Ge(1024)] = 8 * 1024 * 1024
    max_messages: Annotated[int, Ge(1)] = 2000
    max_tools: Annotated[int, Ge(1)] = 128
    keep_alive_s: Annotated[float, Gt(0)] = 75.0
