"""`Backend` for llama.cpp: a supervised child that hosts its HTTP server on a Unix socket."""

from __future__ import annotations

import secrets
from pathlib import Path

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import BackendInfo, Batching
from llm_runtime.engines.child_backend import ChildBackend, EngineHost, log_engine_line
from llm_runtime.engines.config import LlamaCppConfig
from llm_runtime.engines.llama_cpp.command import LaunchParameters
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities, check
from llm_runtime.engines.llama_cpp.life import EngineLife
from llm_runtime.engines.llama_cpp.lora import lora_adapters
from llm_runtime.engines.process import EngineProcess, ProcessSpec, child_environment, scratch_directory
from llm_runtime.engines.threads import default_threads
from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.client import Upstream

NAME = "llama.cpp"
ENDPOINTS = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS, EndpointKind.TOKENIZE})
MIN_BATCH = 16
"""Tokens of prompt worked on between two looks at cancellations: larger is a little faster, and
cancels later (docs/configuration.md has the measurement)."""


class LlamaCppBackend(ChildBackend[EngineLife]):
    """One engine; see `ChildBackend` for who may call what."""

    def __init__(
        self,
        config: LlamaCppConfig,
        host: EngineHost,
        *,
        num_slots: int,
        model: str,
        model_path: Path,
        model_created: int,
    ) -> None:
        """Raises ConfigError."""
        self._config = config
        self._host = host
        self._model_path = model_path
        self._abilities = TemplateAbilities()
        self._lora = lora_adapters(config.lora_adapters, model)
        info = BackendInfo(
            name=NAME,
            model=model,
            batching=Batching.CONTINUOUS,
            num_slots=num_slots,
            context_tokens=config.n_ctx,
            endpoints=ENDPOINTS | {EndpointKind.EMBEDDINGS} if config.embeddings else ENDPOINTS,
            model_created=model_created,
            models=(model, *(adapter.name for adapter in self._lora)) if self._lora else None,
        )
        super().__init__(info, host.supervision, self._start_life)

    @property
    def abilities(self) -> TemplateAbilities:
        """Of the model's chat template; none before the engine is ready."""
        return self._abilities

    def check(self, request: RuntimeRequest) -> None:
        if request.kind is EndpointKind.EMBEDDINGS and request.model != self.info.model:
            message = f"The adapter '{request.model}' serves chat and completions, not embeddings."
            raise InvalidRequest(message, param="model", reason="unsupported_parameter")
        check(request, self._abilities)

    # ---- the engine's lives

    async def _start_life(self) -> EngineLife:
        """Starts a process and returns it ready. Leaves nothing behind when it raises."""
        host = self._host
        scratch = scratch_directory()
        socket_path = scratch / "engine.sock"
        key = secrets.token_hex(16)
        process = await EngineProcess.start(
            ProcessSpec(
                name=NAME,
                command=self._parameters(socket_path).command(),
                environment=child_environment(host.environ, {"LLAMA_API_KEY": key, "GGML_NO_BACKTRACE": "1"}),
                state_dir=host.state_dir,
                grace_s=host.supervision.stop_grace_s,
                scratch=scratch,
            ),
            on_line=log_engine_line(NAME),
        )
        upstream = Upstream(Address(unix_path=str(socket_path)), {"authorization": f"Bearer {key}"})
        life = EngineLife(process, upstream, host.clock, self._config.n_ctx, self._lora)
        try:
            await life.become_ready(host.supervision.start_timeout_s)
        except BaseException:
            await life.stop(0.0)
            raise
        self._abilities = life.abilities
        return life

    def _parameters(self, socket_path: Path) -> LaunchParameters:
        config = self._config
        return LaunchParameters(
            model_path=self._model_path,
            alias=self.info.model,
            socket_path=socket_path,
            num_slots=self.info.num_slots,
            context_tokens=config.n_ctx,
            num_threads=config.n_threads or default_threads(),
            num_batch=config.n_batch or max(self.info.num_slots, MIN_BATCH),
            num_gpu_layers=config.n_gpu_layers,
            cache_ram_mib=config.cache_ram_mib,
            server_binary=config.server_binary,
            embeddings=config.embeddings,
            lora_paths=tuple(adapter.path for adapter in self._lora),
        )
