"""LoRA adapters beside the model: each is a model name of its own, chosen per request.

All are loaded with the model and applied to nobody; a request that names one gets it at its scale. The
engine computes requests with different adapters in different steps, so mixed traffic batches less well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_runtime.core.errors import ConfigError

GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """path: GGUF, as llama.cpp's `convert_lora_to_gguf.py` writes it. scale: factor on its effect."""

    name: str
    path: Path
    scale: float = 1.0


def lora_adapters(written: Sequence[str], model: str) -> tuple[LoraAdapter, ...]:
    """From `NAME=FILE[:SCALE]`. Raises ConfigError for what is none, cannot be read, or has a name that
    is taken."""
    found: dict[str, LoraAdapter] = {}
    for entry in written:
        name, equals, rest = entry.partition("=")
        name = name.strip()
        if not equals or not name or not rest:
            raise ConfigError(f"engines.llama_cpp.lora_adapters: {entry!r} is not NAME=FILE[:SCALE]")
        if name == model or name in found:
            raise ConfigError(f"engines.llama_cpp.lora_adapters: the name {name!r} is taken")
        path, scale = _scaled(rest)
        _check_file(path, entry)
        found[name] = LoraAdapter(name, path, scale)
    return tuple(found.values())


def lora_field(adapters: Sequence[LoraAdapter], model: str) -> Mapping[str, Any]:
    """What the request's body says about them; whatever it does not name is off."""
    if not adapters:
        return {}
    chosen = [
        {"id": number, "scale": adapter.scale}
        for number, adapter in enumerate(adapters)
        if adapter.name == model
    ]
    return {"lora": chosen or [{"id": 0, "scale": 0.0}]}


def _scaled(text: str) -> tuple[Path, float]:
    path, colon, number = text.rpartition(":")
    if colon and path:
        try:
            return Path(path).expanduser(), float(number)
        except ValueError:
            pass
    return Path(text).expanduser(), 1.0


def _check_file(path: Path, entry: str) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"engines.llama_cpp.lora_adapters: {entry!r}: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ConfigError(f"engines.llama_cpp.lora_adapters: {entry!r} is not a GGUF file")
