"""`Backend` for vLLM: a supervised `vllm serve` of our own, on a Unix socket or a loopback port."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendInfo, Batching
from llm_runtime.engines.child_backend import ChildBackend, EngineHost
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.process import (
    EngineProcess,
    ProcessSpec,
    child_environment,
    ensure_port_free,
    scratch_directory,
)
from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.vllm.calls import PATHS
from llm_runtime.engines.vllm.command import (
    HOST,
    Endpoint,
    ServedModel,
    engine_arguments,
    entry_point,
    extra_arguments,
    server_command,
)
from llm_runtime.engines.vllm.fields import check
from llm_runtime.engines.vllm.life import NAME, LastLine, VllmLife


class VllmBackend(ChildBackend[VllmLife]):
    """One vLLM server; see `ChildBackend` for who may call what."""

    def __init__(
        self,
        config: VllmConfig,
        host: EngineHost,
        *,
        num_slots: int,
        model: ServedModel,
        model_created: int,
    ) -> None:
        extra_arguments(config)  # raises ConfigError
        self._config = config
        self._host = host
        self._model = model
        info = BackendInfo(
            name=NAME,
            model=model.name,
            batching=Batching.CONTINUOUS,
            num_slots=num_slots,
            context_tokens=config.max_model_len,
            endpoints=frozenset(PATHS),
            model_created=model_created,
            content_parts=None,  # vLLM knows what its model takes, and says so
        )
        super().__init__(info, host.supervision, self._start_life)

    def check(self, request: RuntimeRequest) -> None:
        check(request)

    async def _start_life(self) -> VllmLife:
        """Starts a server and returns it ready. Leaves nothing behind when it raises."""
        config, host = self._config, self._host
        entry = await entry_point(config, host.environ)
        if config.port is not None:
            ensure_port_free(HOST, config.port, "LLM_RUNTIME_VLLM_PORT")
        scratch = scratch_directory()
        endpoint, address = _place(config.port, scratch)
        key = secrets.token_hex(16)
        arguments = engine_arguments(config, self._model, self.info.num_slots)
        printed = LastLine()
        process = await EngineProcess.start(
            ProcessSpec(
                name=NAME,
                command=server_command(entry, self._model, endpoint, arguments),
                environment=vllm_environment(host, self._model, {"VLLM_API_KEY": key}),
                state_dir=host.state_dir,
                grace_s=host.supervision.stop_grace_s,
                scratch=scratch,
            ),
            on_line=printed,
        )
        life = VllmLife(
            process,
            Upstream(address, {"authorization": f"Bearer {key}"}),
            host.clock,
            printed=printed,
            stranger=Upstream(address) if config.port is not None else None,
            with_priority=config.scheduling_policy == "priority",
        )
        try:
            await life.become_ready(self._model.name, config.start_timeout_s)
        except BaseException:
            await life.stop(0.0)
            raise
        self.info = replace(self.info, context_tokens=life.context_tokens or config.max_model_len)
        return life


def _place(port: int | None, scratch: Path) -> tuple[Endpoint, Address]:
    if port is not None:
        return Endpoint(port=port), Address(host=HOST, port=port)
    socket_path = scratch / "engine.sock"
    return Endpoint(socket_path=socket_path), Address(unix_path=str(socket_path))


def vllm_environment(host: EngineHost, model: ServedModel, extra: dict[str, str]) -> dict[str, str]:
    defaults = {**local_defaults(model), "PYTHONSAFEPATH": "1"}
    return {**defaults, **child_environment(host.environ, extra)}


def local_defaults(model: ServedModel) -> dict[str, str]:
    """Of the engine's environment: it reports to nobody unless the operator says so himself, and looks
    nothing up where the weights are a folder of this machine. Its processes give themselves titles, which
    must not be written over the mark by which they are found (SPT_NOENV)."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "SPT_NOENV": "1"}
    if Path(model.weights).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    return defaults
