"""One look at an upstream: does it answer, and which models does it have."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from http import HTTPStatus

from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.engines.openai.names import listed_names
from llm_runtime.engines.openai.target import Target
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange

MAX_ANSWER_BYTES = 8 * 1024 * 1024

_NO_SUCH_PROBE = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_IMPLEMENTED,
    }
)
"""Answers to `/health` that say nothing about health: it is not there, or not for us."""


@dataclass(frozen=True, slots=True)
class Seen:
    """models: None where it does not list them."""

    models: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """reason: for health answers; names neither host nor path."""

    reason: str


class Probe:
    """Owned by the backend's watch. health_path: below the root, None finds out: `/health`, and where
    there is none the list of models."""

    def __init__(self, upstream: Upstream, target: Target, health_path: str | None, timeout_s: float) -> None:
        self._upstream = upstream
        self._target = target
        self._path = health_path
        self._auto = health_path is None
        self._timeout_s = timeout_s

    async def look(self) -> Seen | Missed:
        """As gently as it can be asked whether it is there."""
        path = self._path if self._path is not None else "/health"
        if self._auto and self._path == "":
            return await self.list_models()
        answer = await self._get(self._target.under_root(path))
        if isinstance(answer, Missed):
            return answer
        status, _ = answer
        if 200 <= status < 300 or status == HTTPStatus.TOO_MANY_REQUESTS:
            return Seen()
        if self._auto and status in _NO_SUCH_PROBE:
            self._path = ""  # from now on by the list of models
            return await self.list_models()
        return Missed(f"the upstream answers its health check with status {status}")

    async def list_models(self) -> Seen | Missed:
        answer = await self._get(self._target.under_base("/models"))
        if isinstance(answer, Missed):
            return answer
        status, body = answer
        if status == HTTPStatus.OK:
            models = listed_names(body)
            if models is None:
                return Missed("what answers at the upstream's address is no OpenAI-compatible server")
            return Seen(models)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return Missed("the upstream refuses the configured credentials")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
            return Seen()
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return Seen()
        return Missed(f"the upstream answers with status {status}")

    async def _get(self, path: str) -> tuple[int, bytes] | Missed:
        exchange = self._upstream.request("GET", path)
        try:
            async with asyncio.timeout(self._timeout_s):
                await exchange.head()
                return exchange.status, await _bounded(exchange)
        except TimeoutError:
            return Missed("the upstream does not answer in time")
        except BackendUnavailable as error:
            if isinstance(error.__cause__, ssl.SSLError):
                return Missed("the upstream's TLS certificate is not accepted")
            return Missed("the upstream does not accept connections")
        except BackendError:
            return Missed("the upstream does not answer properly")
        finally:
            exchange.abort()


async def _bounded(exchange: Exchange) -> bytes:
    whole = b""
    while (part := await exchange.read()) is not None:
        whole += part
        if len(whole) > MAX_ANSWER_BYTES:
            raise BackendError("The answer is too long.")
    return whole
