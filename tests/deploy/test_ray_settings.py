from __future__ import annotations

from collections.abc import Mapping

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.deploy.ray_settings import GPU_MODEL, Plan, make_plan

MOCK = {"engines.backend": "mock"}


def plan(
    args: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None, *, gpu: bool = False
) -> Plan:
    return make_plan(args or {}, environ or {}, has_gpu=gpu)


def test_without_a_gpu_the_embedded_model_is_served() -> None:
    made = plan()
    assert (made.device, made.settings.engines.backend, made.num_slots) == ("cpu", "llama.cpp", 8)
    assert (made.max_replicas, made.num_gpus, made.target_ongoing_requests) == (1, 0.0, 6.0)
    assert made.settings.model.path == "builtin:smollm2-135m"


def test_on_a_gpu_vllm_runs_in_the_replica() -> None:
    made = plan(gpu=True)
    vllm = made.settings.engines.vllm
    assert (made.device, made.settings.engines.backend, made.num_slots) == ("gpu", "vllm-inprocess", 128)
    assert made.settings.model.path == GPU_MODEL == "Qwen/Qwen2.5-7B-Instruct"
    assert (vllm.dtype, vllm.gpu_memory_utilization, vllm.prefix_caching) == ("bfloat16", 0.9, True)
    assert (vllm.max_num_batched_tokens, vllm.max_model_len) == (4096, 4096)
    assert (made.max_replicas, made.num_gpus, made.num_seats) == (8, 1.0, 16)


def test_the_short_variables_are_read() -> None:
    environ = {"VLLM_MAX_NUM_SEQS": "32", "VLLM_MAX_NUM_BATCHED_TOKENS": "2048", "VLLM_MAX_MODEL_LEN": "1024"}
    made = plan(environ=environ, gpu=True)
    vllm = made.settings.engines.vllm
    assert (made.num_slots, vllm.max_num_batched_tokens, vllm.max_model_len) == (32, 2048, 1024)


def test_what_is_given_elsewhere_wins_over_the_defaults_of_gpus() -> None:
    made = plan(
        {"engines.vllm.dtype": "float16", "model_path": "org/other"},
        {"LLM_RUNTIME_NATIVE_BACKEND_CONCURRENCY": "7"},
        gpu=True,
    )
    assert (made.num_slots, made.settings.engines.vllm.dtype) == (7, "float16")
    assert made.settings.model.path == "org/other"


def test_arguments_win_over_short_variables() -> None:
    assert plan({"native_backend_concurrency": "5"}, {"VLLM_MAX_NUM_SEQS": "32"}, gpu=True).num_slots == 5


def test_the_device_can_be_said() -> None:
    assert plan({"ray.device": "gpu"}).num_gpus == 1.0
    assert plan({"ray.device": "cpu"}, gpu=True).settings.engines.backend == "llama.cpp"


def test_vllm_for_the_cpu_takes_the_short_variables_too() -> None:
    made = plan({"backend": "vllm-inprocess"}, {"VLLM_MAX_NUM_SEQS": "4"})
    assert (made.device, made.num_slots, made.num_gpus) == ("cpu", 4, 0.0)
    assert made.settings.engines.vllm.dtype == "auto"


@pytest.mark.parametrize(
    ("args", "environ", "words"),
    [
        ({"engines.llama_cpp.n_gpu_layers": "20"}, {}, ("n_gpu_layers = 20", "ray.device = gpu")),
        ({"backend": "vllm", "vllm_gpu_memory_utilization": "0.5"}, {}, ("gpu_memory_utilization = 0.5",)),
        ({"ray.num_gpus": "1"}, {}, ("ray.num_gpus = 1", "there is none here")),
        ({}, {"VLLM_MAX_NUM_SEQS": "64"}, ("VLLM_MAX_NUM_SEQS = 64", "engines.backend = llama.cpp")),
        ({"backend": "vllm"}, {"VLLM_MAX_MODEL_LEN": "many"}, ("VLLM_MAX_MODEL_LEN = 'many'", "at least 1")),
        ({"backend": "hf"}, {}, ("engines.backend = hf", "llama.cpp")),
        (MOCK | {"ray.target_ongoing_requests": "9"}, {}, ("target_ongoing_requests = 9", "at most 8")),
        (MOCK | {"ray.min_replicas": "3", "ray.max_replicas": "2"}, {}, ("ray.max_replicas = 2", "least 3")),
        (
            {"backend": "vllm"},
            {"VLLM_MAX_NUM_SEQS": "4", "LLM_RUNTIME_NATIVE_BACKEND_CONCURRENCY": "8"},
            ("VLLM_MAX_NUM_SEQS = 4", "contradicts LLM_RUNTIME_NATIVE_BACKEND_CONCURRENCY"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_with_its_fix(
    args: dict[str, str], environ: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(args, environ)
    for word in words:
        assert word in caught.value.message


def test_more_fixed_replicas_than_the_default_most_are_allowed() -> None:
    made = plan(MOCK | {"ray.min_replicas": "3"})
    assert (made.max_replicas, made.num_seats) == (3, 16)
    assert plan(MOCK | {"ray.max_replicas": "20"}).num_seats == 40


def test_the_number_of_replicas_is_not_part_of_what_replicas_are_told() -> None:
    few, many = plan(MOCK), plan(MOCK | {"ray.min_replicas": "3"})
    assert few != many
    assert few.without_scaling == many.without_scaling
