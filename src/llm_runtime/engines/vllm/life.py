"""One life of a vLLM server: how it becomes ready, that it is ours that answers, and what it is asked."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import orjson
import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, BackendUnavailable, ConfigError
from llm_runtime.engines.base import Work
from llm_runtime.engines.child_backend import log_engine_line
from llm_runtime.engines.http_life import HttpLife
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.process import EngineProcess
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.vllm.calls import engine_call, engine_ids
from llm_runtime.engines.vllm.cancels import AbortWatch, EngineIds

log = structlog.get_logger(__name__)

NAME = "vllm"
PROBE_INTERVAL_S = 0.2
PROGRESS_INTERVAL_S = 10.0
EXIT_USAGE = 2
"""What vLLM's command line parser ends with: the same start can only fail again."""


_COUNTED = re.compile(
    rb"^vllm:(?:prompt_tokens|generation_tokens|iteration_tokens_total)_(?:total|count)(?:\{[^}]*\})? (\S+)",
    re.M,
)


class LastLine:
    """Takes what the engine prints: into the log, and the newest line kept."""

    def __init__(self) -> None:
        self.text = ""
        self._log = log_engine_line(NAME)

    def __call__(self, stream: str, text: str) -> None:
        self.text = text
        self._log(stream, text)


class VllmLife(HttpLife[EngineIds]):
    """See `HttpLife`. context_tokens: what the server says of its model, once it is ready.

    printed: what the server said last. stranger: a client of the same server without our key, to tell
    ours from another's; None where nobody else can be listening.
    """

    def __init__(
        self,
        process: EngineProcess,
        upstream: Upstream,
        clock: Clock,
        *,
        printed: LastLine,
        stranger: Upstream | None = None,
        with_priority: bool = False,
    ) -> None:
        super().__init__(process, upstream, clock, AbortWatch(upstream, clock))
        self.context_tokens: int | None = None
        self._printed = printed
        self._stranger = stranger
        self._with_priority = with_priority

    async def become_ready(self, model: str, timeout_s: float) -> None:
        """Raises what `EngineProcess.wait_ready` raises, ConfigError for arguments that vLLM refuses,
        BackendUnavailable where another program answers in its place. The process is not stopped."""
        reporting = asyncio.get_running_loop().create_task(self._report_progress(), name="vllm progress")
        try:
            self.context_tokens = await self.process.wait_ready(lambda: self._probe(model), timeout_s)
        except BackendUnavailable as error:
            report = self.process.exit_report
            if report is not None and report.code == EXIT_USAGE:
                refusal = ConfigError("vLLM refused its arguments; see its last lines in the log")
                refusal.add_note(report.detail)
                raise refusal from error
            raise
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            if self._stranger is not None:
                await self._stranger.aclose()

    async def _probe(self, model: str) -> int | None:
        # Only starting up is polled: a server has no event that says it is ready.
        while await self.get("/health") is None:  # noqa: ASYNC110
            await asyncio.sleep(PROBE_INTERVAL_S)
        served = _served(await self.get("/v1/models"), model)
        if served is None or not await self._refuses_strangers():
            raise BackendUnavailable(
                "another program answers where vLLM was told to listen; choose another port with "
                "LLM_RUNTIME_VLLM_PORT, or none for a private socket",
                reason="engine_impostor",
            )
        length = served.get("max_model_len")
        return length if isinstance(length, int) and length > 0 else None

    async def _refuses_strangers(self) -> bool:
        if self._stranger is None:
            return True
        exchange = self._stranger.request("GET", "/v1/models")
        try:
            await exchange.head()
        except BackendError:
            return False
        finally:
            exchange.abort()
        return exchange.status == 401

    async def _report_progress(self) -> None:
        """Large models take minutes: what vLLM printed last says how far it is."""
        begun = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            elapsed_s = round(time.monotonic() - begun)
            log.info("engine.starting", engine=NAME, elapsed_s=elapsed_s, line=self._printed.text)

    async def work_done(self) -> float | None:
        """Tokens read and made, of the server's own count."""
        body = await self.get("/metrics")
        return None if body is None else sum(float(value) for value in _COUNTED.findall(body))

    def prepare(self, work: Work) -> tuple[EngineCall, EngineIds]:
        request = work.request
        return engine_call(request, with_priority=self._with_priority), engine_ids(request)


def _served(body: bytes | None, model: str) -> dict[str, Any] | None:
    """The entry of /v1/models for our model; None if it is not there."""
    try:
        entries: Any = orjson.loads(body or b"")
        return next((entry for entry in entries["data"] if entry["id"] == model), None)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
