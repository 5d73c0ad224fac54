"""LoRA adapters on the real engine: a name of its own for each, and the base as if there were none."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.llama_cpp.backend import LlamaCppBackend
from tests.engines.driving import make_request, open_batch, read
from tests.engines.llama_cpp.conftest import MODEL, running

pytestmark = pytest.mark.engine

WIDTH, RANK, LAYERS = 576, 4, (27, 28, 29)
STRING, FLOAT32 = 8, 6
ALIGNMENT = 32


def write_adapter(path: Path, seed: int, size: float) -> Path:
    """A rank-4 adapter of noise on three layers' attention output, in GGUF version 3."""
    source = random.Random(seed)
    tensors = []
    for layer in LAYERS:
        for part, shape in (("lora_a", (WIDTH, RANK)), ("lora_b", (RANK, WIDTH))):
            values = [source.gauss(0.0, size) for _ in range(WIDTH * RANK)]
            tensors.append((f"blk.{layer}.attn_output.weight.{part}", shape, values))
    pairs = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs) + 1)
    for key, text in pairs.items():
        head += _string(key) + struct.pack("<I", STRING) + _string(text)
    head += _string("adapter.lora.alpha") + struct.pack("<If", FLOAT32, float(RANK))
    data = b""
    for name, shape, values in tensors:
        head += _string(name) + struct.pack("<IQQIQ", 2, *shape, 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


async def say(backend: LlamaCppBackend, *models: str) -> list[str]:
    """What each says to the same prompt, all at once."""
    requests = [make_request(model, prompt="Tell me about rivers.", max_tokens=12) for model in models]
    answers = await asyncio.gather(*(read(opened, 60) for opened in open_batch(backend, requests)))
    return [answer.texts[0] for answer in answers]


async def test_each_request_gets_the_adapter_it_names(tmp_path: Path) -> None:
    loud = write_adapter(tmp_path / "loud.gguf", 1, 0.2)
    async with running(tmp_path) as backend:
        (base,) = await say(backend, MODEL)
    adapters = (f"loud={loud}", f"mute={loud}:0")
    async with running(tmp_path, lora_adapters=adapters) as backend:
        assert backend.info.names == (MODEL, "loud", "mute")
        first, second, mute, again = await say(backend, MODEL, "loud", "mute", MODEL)
        assert first == mute == again == base
        assert second != base
        assert (await say(backend, "loud"))[0] == second
        embed = make_request("loud", kind=EndpointKind.EMBEDDINGS)
        with pytest.raises(InvalidRequest, match="not embeddings"):
            backend.check(embed)
