"""One set of launch parameters, two programs: both must be told the same."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from llm_runtime.engines.llama_cpp import host
from llm_runtime.engines.llama_cpp.command import LaunchParameters

COMMON = {
    "model_path": Path("/models/m.gguf"),
    "alias": "tiny",
    "num_slots": 4,
    "context_tokens": 2048,
    "num_threads": 3,
    "num_batch": 16,
    "num_gpu_layers": 7,
    "cache_ram_mib": 64,
    "poll": 5,
}


def launch(**changed: object) -> LaunchParameters:
    return LaunchParameters(**{**COMMON, **changed})  # type: ignore[arg-type]


def options(command: tuple[str, ...]) -> dict[str, str]:
    """Flag and value of those that have one."""
    pairs = itertools.pairwise(command)
    return {flag: value for flag, value in pairs if flag.startswith("--") and not value.startswith("--")}


def test_our_host_understands_its_command() -> None:
    command = launch(socket_path=Path("/run/e.sock")).command()
    assert command[:4] == (sys.executable, "-P", "-m", "llm_runtime.engines.llama_cpp.host")
    parsed = host.arguments(list(command[4:]))
    assert vars(parsed) == {
        "socket": "/run/e.sock",
        "port": None,
        "host": "127.0.0.1",
        "model": "/models/m.gguf",
        "alias": "tiny",
        "slots": 4,
        "ctx_per_slot": 2048,
        "threads": 3,
        "batch": 16,
        "gpu_layers": 7,
        "cache_ram_mib": 64,
        "poll": 5,
        "lora": [],
        "embeddings": False,
    }
    adapted = launch(lora_paths=(Path("/a.gguf"), Path("/b.gguf"))).command()
    assert host.arguments(list(adapted[4:])).lora == ["/a.gguf", "/b.gguf"]
    embedding = launch(socket_path=Path("/run/e.sock"), embeddings=True).command()
    assert host.arguments(list(embedding[4:])).embeddings


def test_external_server_is_told_the_same() -> None:
    command = launch(socket_path=Path("/run/e.sock"), server_binary="/opt/llama-server").command()
    assert command[0] == "/opt/llama-server"
    assert options(command) == {
        "--host": "/run/e.sock",
        "--model": "/models/m.gguf",
        "--alias": "tiny",
        "--parallel": "4",
        "--ctx-size": "8192",
        "--threads": "3",
        "--threads-batch": "3",
        "--batch-size": "16",
        "--ubatch-size": "16",
        "--n-gpu-layers": "7",
        "--cache-ram": "64",
        "--poll": "5",
        "--sse-ping-interval": "-1",
        "--verbosity": "2",
    }
    assert {"--slots", "--metrics", "--no-webui", "--offline"} <= set(command)
    adapted = launch(lora_paths=(Path("/a.gguf"),), server_binary="/opt/llama-server").command()
    assert ("--lora", "/a.gguf") in itertools.pairwise(adapted)
    assert "--lora-init-without-apply" in adapted


@pytest.mark.parametrize("binary", [None, "/opt/llama-server"])
def test_port_instead_of_a_socket(binary: str | None) -> None:
    told = options(launch(host="::1", port=8081, server_binary=binary).command())
    assert (told["--host"], told["--port"]) == ("::1", "8081")
    assert "--socket" not in told
