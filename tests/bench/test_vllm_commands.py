"""What the experiments on vLLM start, held to the settings and the arguments there are; and the checkpoint
that one of them makes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.bench.scenarios import engines, vllm_max_num_seqs, vllm_memory_share, vllm_precision
from llm_runtime.bench.vllm_host import Engine, Host, command, local_folder
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import ModelConfig
from llm_runtime.engines.vllm.command import ServedModel, engine_arguments
from llm_runtime.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
HOST = Host(gpu=True, python=sys.executable, model="/models/qwen", awq_model="/models/qwen-awq")
MODULES = (engines, vllm_max_num_seqs, vllm_memory_share, vllm_precision)


def settings_of(line: str) -> dict[str, str]:
    words = shlex.split(line)
    assert words[:4] == ["llm-runtime", "serve", "--port", "{port}"]
    assert words[4::2] == ["-o"] * len(words[4::2])
    return dict(word.split("=", 1) for word in words[5::2])


@pytest.mark.parametrize("host", [HOST, replace(HOST, gpu=False), replace(HOST, dummy_weights=True)])
def test_every_command_has_settings_that_the_server_takes(host: Host) -> None:
    lines = [line for module in MODULES for line in module.commands(host)]
    assert len(lines) == len(set(lines)) >= 12
    for line in lines:
        settings = load_settings(settings_of(line), {})
        assert isinstance(settings.model, ModelConfig)
        engine_arguments(settings.engines.vllm, ServedModel("m", "w"), 4)  # raises for what settings give


def test_a_gpu_gets_a_share_of_memory_and_processors_a_small_cache() -> None:
    share = settings_of(command(HOST, Engine(4, 512, memory_share=0.5)))
    assert share["engines.vllm.gpu_memory_utilization"] == "0.5"
    assert "engines.vllm.extra_arguments" not in share
    small = settings_of(command(replace(HOST, gpu=False), Engine(4, 512, cache_bytes=64, quantisation="fp8")))
    assert small["engines.vllm.extra_arguments"] == (
        "--enforce-eager --block-size 32 --kv-cache-memory-bytes 64 --quantization fp8"
    )
    assert "engines.vllm.gpu_memory_utilization" not in small
    on_cpu = [settings_of(line) for line in engines.commands(Host(python=sys.executable))]
    assert [one["engines.vllm.extra_arguments"] for one in on_cpu if one["backend"] == "vllm"] == [
        engines.CPU_CACHE
    ]


ENGINES_OF = {
    "processors": (
        replace(HOST, gpu=False),
        Engine(8, 512, cache_bytes=8 << 20, quantisation="fp8_per_block"),
    ),
    "a GPU": (HOST, Engine(8, 512, memory_share=0.3, dtype="bfloat16", quantisation="fp8")),
    "dummy weights": (replace(HOST, dummy_weights=True), Engine(8, 512)),
}


@pytest.mark.vllm
@pytest.mark.parametrize("name", ENGINES_OF)
def test_vllm_takes_the_arguments(name: str) -> None:
    host, engine = ENGINES_OF[name]
    settings = load_settings(settings_of(command(host, engine)), {})
    arguments = engine_arguments(settings.engines.vllm, ServedModel("m", host.model), engine.num_seqs)
    parser = ROOT / "tests" / "deploy" / "vllm_arguments.py"
    done = subprocess.run(
        [Host().interpreter(), "-W", "ignore", parser, host.model, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout.splitlines()[-1])
    assert (parsed["model_tag"], parsed["max_num_seqs"], parsed["max_model_len"]) == (host.model, 8, 512)


READ_BACK = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file
made, source = (load_file(Path(folder) / "model.safetensors") for folder in sys.argv[1:])
name = "model.layers.0.mlp.down_proj"
words = made[f"{name}.qweight"]
print(json.dumps({
    "kept": all(bool((made[key] == source[key]).all()) for key in made if key in source),
    "replaced": sorted({key for key in source if key not in made})[0],
    "shape": list(words.shape),
    "scales": list(made[f"{name}.scales"].shape),
    "zeros": list(made[f"{name}.qzeros"].shape),
    "type": str(words.dtype),
}))
"""


@pytest.mark.vllm
def test_the_weights_become_a_checkpoint_of_awq(tmp_path: Path) -> None:
    source = local_folder(Host())
    assert source is not None
    target = Path(vllm_precision.awq_model(Host(), tmp_path))
    config = json.loads((target / "config.json").read_bytes())
    assert config["quantization_config"] == {
        "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
    }  # fmt: skip
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    done = subprocess.run(
        [Host().interpreter(), "-c", READ_BACK, target, source], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "kept": True, "replaced": "model.layers.0.mlp.down_proj.weight", "shape": [1536, 576 // 8],
        "scales": [1536 // 64, 576], "zeros": [1536 // 64, 576 // 8], "type": "torch.int32",
    }  # fmt: skip


def test_without_weights_of_its_own_awq_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--awq-model"):
        vllm_precision.awq_model(Host(python=sys.executable, model="ORG/NAME"), tmp_path)
    with pytest.raises(ConfigError, match="dummy"):
        vllm_precision.awq_model(replace(HOST, awq_model=None, dummy_weights=True), tmp_path)
    assert vllm_precision.awq_model(HOST, tmp_path) == "/models/qwen-awq"


def test_transformers_is_compared_at_one_four_and_sixteen() -> None:
    for size in (engines.FULL, engines.GPU):
        assert {1, 4, 16} <= set(size.levels)
        assert size.rounds * size.requests >= 200  # for a p95
    assert int(str(engines.ENGINES["vllm"]["native_backend_concurrency"])) >= 16


def test_results_of_a_gpu_replace_no_others_and_name_no_folder() -> None:
    for module in MODULES:
        there, here = module.on(HOST), module.SCENARIO
        assert there.name == f"gpu-{here.name}"
        assert there.workload["host"]["model"] == "qwen"
