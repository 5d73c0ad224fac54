"""The embedded model taken out of its GGUF file, by the Python of vLLM's environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llm_runtime.engines.config import BUILTIN_MODEL
from llm_runtime.engines.weights import SafetensorsStore
from tests.engines.vllm.support import vllm_python

NUM_PARAMETERS = 134_515_008


@pytest.mark.vllm
def test_the_embedded_model_becomes_a_folder_that_engines_load(tmp_path: Path) -> None:
    store = SafetensorsStore({**os.environ, "LLM_RUNTIME_CACHE": str(tmp_path)})
    folder = store.ensure(BUILTIN_MODEL, vllm_python())
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    assert (folder / "tokenizer.json").is_file()
    num_bytes = (folder / "model.safetensors").stat().st_size
    assert 0 <= num_bytes - 2 * NUM_PARAMETERS < 100_000, "two bytes for each parameter, and a header"
    assert store.find(BUILTIN_MODEL) == folder
