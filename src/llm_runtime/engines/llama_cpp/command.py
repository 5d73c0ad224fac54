"""How a llama.cpp engine is launched: one set of parameters, two programs that understand it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

HOST_MODULE = "llm_runtime.engines.llama_cpp.host"

LISTENING = "LISTENING "
"""Our host prints it, followed by its address, when it is ready. `llama-server` prints no such line."""

API_KEY_VARIABLE = "LLAMA_API_KEY"
"""Both programs read the key they demand from here: a command line is public."""


@dataclass(frozen=True, slots=True)
class LaunchParameters:
    """context_tokens: of one slot; the engine gets it times num_slots.

    num_batch: tokens of prompt per step, at least num_slots. cache_ram_mib: the engine's cache of
    prompts in host memory. poll: 0 to 100, how long its threads spin for work before they sleep.
    embeddings: also serve embeddings, of the last token, which works for any length of text.
    socket_path: a Unix socket ending in .sock; without it the engine listens on host and port (for
    our host 0 means any). server_binary: an external `llama-server` of 2026 or newer. lora_paths: adapters,
    loaded and not applied: each request says which it wants.
    """

    model_path: Path
    alias: str
    num_slots: int
    context_tokens: int
    num_threads: int
    num_batch: int
    socket_path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    num_gpu_layers: int = 0
    cache_ram_mib: int = 256
    poll: int = 0
    embeddings: bool = False
    server_binary: str | None = None
    lora_paths: tuple[Path, ...] = ()

    def command(self) -> tuple[str, ...]:
        """argv, without secrets."""
        return self._host_command() if self.server_binary is None else self._server_command()

    def _host_command(self) -> tuple[str, ...]:
        address: tuple[str, ...] = ("--port", str(self.port), "--host", self.host)
        if self.socket_path is not None:
            address = ("--socket", str(self.socket_path))
        return (
            *(sys.executable, "-P", "-m", HOST_MODULE),
            *address,
            *("--model", str(self.model_path)),
            *("--alias", self.alias),
            *("--slots", str(self.num_slots)),
            *("--ctx-per-slot", str(self.context_tokens)),
            *("--threads", str(self.num_threads)),
            *("--batch", str(self.num_batch)),
            *("--gpu-layers", str(self.num_gpu_layers)),
            *("--cache-ram-mib", str(self.cache_ram_mib)),
            *("--poll", str(self.poll)),
            *(("--embeddings",) if self.embeddings else ()),
            *self._lora_arguments(),
        )

    def _server_command(self) -> tuple[str, ...]:
        assert self.server_binary is not None
        address: tuple[str, ...] = ("--host", self.host, "--port", str(self.port))
        if self.socket_path is not None:
            address = ("--host", str(self.socket_path))
        return (
            self.server_binary,
            *address,
            *("--model", str(self.model_path)),
            *("--alias", self.alias),
            *("--parallel", str(self.num_slots)),
            *("--ctx-size", str(self.context_tokens * self.num_slots)),
            *("--threads", str(self.num_threads)),
            *("--threads-batch", str(self.num_threads)),
            *("--batch-size", str(self.num_batch)),
            *("--ubatch-size", str(self.num_batch)),
            *("--n-gpu-layers", str(self.num_gpu_layers)),
            *("--cache-ram", str(self.cache_ram_mib)),
            *("--poll", str(self.poll)),
            *("--sse-ping-interval", "-1"),
            *("--verbosity", "2"),
            *(("--embeddings", "--pooling", "last") if self.embeddings else ()),
            *self._lora_arguments(),
            *(("--lora-init-without-apply",) if self.lora_paths else ()),
            *("--slots", "--metrics", "--no-webui", "--offline"),
        )

    def _lora_arguments(self) -> tuple[str, ...]:
        return tuple(word for path in self.lora_paths for word in ("--lora", str(path)))
