"""A model on a fake hub, and pulls of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.pull import Hub, Pulled, pull
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import HubStore
from llm_runtime.engines.hub.transfer import Retries
from tests.engines.hub.fake_hub import REPO, FakeHub

WEIGHTS = bytes(range(256)) * 8192  # 2 MiB: several reads
GGUF = b"GGUF" + WEIGHTS
NEEDED = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
NOT_NEEDED = {
    "README.md": b"# Model",
    "pytorch_model.bin": WEIGHTS,
    "onnx/model.onnx": b"onnx",
    "training_args.bin": b"pickled",
    "original/consolidated.safetensors": WEIGHTS,
    "model-Q4_1.gguf": GGUF,
    "modeling_llama.py": b"print('code of somebody else')",
}
LARGE = frozenset({"model.safetensors", "pytorch_model.bin", "model-Q4_1.gguf"})
REF = HubRef(REPO)
GGUF_REF = HubRef(REPO, file="model-Q4_1.gguf")
QUICK = Retries(num=3, first_wait_s=0.001, longest_wait_s=0.002)


def bring(hub: FakeHub, store: HubStore, ref: HubRef = REF, **changes: object) -> Pulled:
    settings = replace(Hub(hub.hub_url, retries=QUICK), **changes)  # type: ignore[arg-type]
    return pull(ref, store, settings)


def failure(hub: FakeHub, store: HubStore, ref: HubRef = REF, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        bring(hub, store, ref, **changes)
    assert store.find(ref) is None
    return caught.value.message


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parts(store: HubStore) -> list[int]:
    return sorted(path.stat().st_size for path in store.parts_of(REPO).glob("*.part"))


def ranges(hub: FakeHub, name: str) -> list[str | None]:
    return [request.headers.get("range") for request in hub.gets(name)]
