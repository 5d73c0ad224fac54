"""Settings of the Ray deployment: the usual tree, with other defaults on GPUs and three short variables.

Pure but for `has_gpu`; knows nothing of Ray.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.ray.config import DEFAULT_MAX_REPLICAS
from llm_runtime.settings import DEFAULT_ORIGIN, Settings, load_settings

GPU_MODEL = "Qwen/Qwen2.5-7B-Instruct"
GPU_DEFAULTS: Mapping[str, str] = types.MappingProxyType(
    {
        "engines.backend": "vllm-inprocess",
        "model.path": GPU_MODEL,
        "engines.native_backend_concurrency": "128",
        "engines.vllm.max_num_batched_tokens": "4096",
        "engines.vllm.max_model_len": "4096",
        "engines.vllm.gpu_memory_utilization": "0.9",
        "engines.vllm.dtype": "bfloat16",
        "engines.vllm.prefix_caching": "true",
    }
)
SHORT_VARIABLES: Mapping[str, str] = types.MappingProxyType(
    {
        "VLLM_MAX_NUM_SEQS": "engines.native_backend_concurrency",
        "VLLM_MAX_NUM_BATCHED_TOKENS": "engines.vllm.max_num_batched_tokens",
        "VLLM_MAX_MODEL_LEN": "engines.vllm.max_model_len",
    }
)
"""Names that people know from vLLM deployments; read here only."""

GPU_ONLY = ("ray.num_gpus", "engines.llama_cpp.n_gpu_layers", "engines.vllm.gpu_memory_utilization")

ENGINES = ("llama.cpp", "vllm", "vllm-inprocess", "mock")
VLLM = ("vllm", "vllm-inprocess")
MOCK_SLOTS = 8
MIN_SEATS = 16
TARGET_SHARE = 0.75

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is deployed. num_slots: of each engine. num_seats: for replicas that serve, and for as many
    that are leaving while others replace them."""

    settings: Settings
    device: Device
    num_slots: int
    max_replicas: int
    target_ongoing_requests: float
    num_gpus: float
    num_seats: int

    @property
    def without_scaling(self) -> Plan:
        """What replicas are told. Numbers of replicas are left out: they would make each change of them a
        new version of the code, for which Ray restarts everything."""
        return replace(
            self, settings=self.settings.without("ray"), max_replicas=0, target_ongoing_requests=0.0
        )


def make_plan(args: Mapping[str, str], environ: Mapping[str, str], *, has_gpu: bool) -> Plan:
    """args: settings by dotted or flat name, as behind `serve run serve.app:deployment`. has_gpu: what
    `ray.device = auto` follows. Raises ConfigError, naming the key, the value and the fix."""
    said = load_settings(args, environ)
    device: Device = said.ray.device if said.ray.device != "auto" else ("gpu" if has_gpu else "cpu")
    short = _short_variables(said, environ)
    defaults = GPU_DEFAULTS if device == "gpu" else {}
    unset = {name: value for name, value in defaults.items() if said.origin(name) == DEFAULT_ORIGIN}
    given = {name: value for name, (_, value) in short.items()}
    settings = load_settings({**unset, **given, **args}, environ)
    _check_engine(settings, short)
    if device == "cpu":
        _check_cpu(settings)
    return _planned(settings, device)


def _planned(settings: Settings, device: Device) -> Plan:
    ray, engines = settings.ray, settings.engines
    num_slots = engines.concurrency
    if engines.backend == "mock":
        num_slots = engines.native_backend_concurrency or MOCK_SLOTS
    target = ray.target_ongoing_requests
    if target is not None and target > num_slots:
        raise ConfigError(
            f"ray.target_ongoing_requests = {target:g} is more than an engine ever runs, so Ray would never "
            f"add one: make it at most {num_slots} (engines.native_backend_concurrency)"
        )
    num_gpus = ray.num_gpus if ray.num_gpus is not None else float(device == "gpu")
    max_replicas = ray.max_replicas or max(DEFAULT_MAX_REPLICAS[device], ray.min_replicas)
    return Plan(
        settings=settings,
        device=device,
        num_slots=num_slots,
        max_replicas=max_replicas,
        target_ongoing_requests=target or max(TARGET_SHARE * num_slots, 1.0),
        num_gpus=num_gpus,
        num_seats=max(2 * max_replicas, MIN_SEATS),
    )


def _short_variables(said: Settings, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By the setting's name: the variable and its value."""
    found = {}
    for variable, name in SHORT_VARIABLES.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{variable} = {text!r}: it should be a whole number of at least 1")
        origin = said.origin(name)
        if origin.startswith("env") and said.value(name) != int(text):
            raise ConfigError(
                f"{variable} = {text} contradicts {origin.removeprefix('env ')}; keep one of the two"
            )
        found[name] = (variable, text)
    return found


def _check_engine(settings: Settings, short: Mapping[str, tuple[str, str]]) -> None:
    backend = settings.engines.backend
    if backend not in ENGINES:
        raise ConfigError(
            f"engines.backend = {backend} makes no sense under Ray; choose one of {', '.join(ENGINES)}"
        )
    if short and backend not in VLLM:
        variable, value = next(iter(short.values()))
        raise ConfigError(
            f"{variable} = {value} is for vLLM, and engines.backend = {backend}: unset it, or choose vLLM "
            "with LLM_RUNTIME_BACKEND=vllm-inprocess"
        )


def _check_cpu(settings: Settings) -> None:
    """What would be silently without effect, or fail in a replica minutes later, on a machine without."""
    for name in GPU_ONLY:
        value = settings.value(name)
        if value:
            raise ConfigError(
                f"{name} = {value:g} is for GPUs, and there is none here: unset it, or say ray.device = gpu "
                "(LLM_RUNTIME_RAY__DEVICE=gpu) if machines with GPUs are in the cluster"
            )
