"""How adapters are written down, and what the engine is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.llama_cpp.lora import LoraAdapter, lora_adapters, lora_field


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a:b.gguf"
    path.write_bytes(b"GGUF....")
    return path


def test_name_file_and_scale(file: Path) -> None:
    found = lora_adapters((f"one={file}", f"two={file}:0.5", f" three ={file}:-2"), "m")
    assert found == (
        LoraAdapter("one", file),
        LoraAdapter("two", file, 0.5),
        LoraAdapter("three", file, -2.0),
    )


@pytest.mark.parametrize(
    "entry", ["", "one", "one=", "=x", "one=/no/such/file", "m={file}", "bad={folder}/bad"]
)
def test_what_is_no_adapter_is_told(entry: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=r"engines\.llama_cpp\.lora_adapters"):
        lora_adapters((entry.format(file=file, folder=tmp_path),), "m")


def test_a_name_is_used_once(file: Path) -> None:
    with pytest.raises(ConfigError, match="taken"):
        lora_adapters((f"one={file}", f"one={file}"), "m")


def test_whom_a_request_does_not_name_is_off(file: Path) -> None:
    adapters = lora_adapters((f"one={file}", f"two={file}:0.5"), "m")
    assert lora_field(adapters, "two") == {"lora": [{"id": 1, "scale": 0.5}]}
    assert lora_field(adapters, "m") == {"lora": [{"id": 0, "scale": 0.0}]}
    assert lora_field((), "m") == {}
