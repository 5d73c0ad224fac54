"""A client and a scripted stub, connected; what tests of exchanges share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from llm_runtime.engines.upstream import Exchange, Limits, Upstream
from tests.engines.upstream.stubs import (
    Script,
    Stub,
    stub,
)


@contextlib.asynccontextmanager
async def talking(script: Script, limits: Limits | None = None) -> AsyncIterator[tuple[Stub, Upstream]]:
    async with stub(script) as server, Upstream(server.address, limits=limits or Limits()) as upstream:
        yield server, upstream


async def whole(exchange: Exchange) -> bytes:
    assert await exchange.head()
    return await exchange.read_all()


async def collect(exchange: Exchange, into: list[bytes]) -> None:
    while (part := await exchange.read()) is not None:
        into.append(part)
