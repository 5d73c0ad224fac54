"""Backends by name; an adapter and its libraries are imported only when it is the one asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_runtime.core.clock import Clock
from llm_runtime.engines.base import Backend
from llm_runtime.engines.child_backend import EngineHost
from llm_runtime.engines.config import BackendKind, EnginesConfig, OpenAIConfig


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """model_path: the resolved weights, None for engines without any. chosen_name: the model's name
    where somebody gave one. default_max_tokens: likewise; None leaves the cap to the engine.
    max_batch_size: for engines that do not batch themselves. model_created: Unix seconds. environ:
    what engine programs inherit. weights: for engines that read safetensors: a folder, or a name of
    the hub.
    state_dir: existing folder for the notes by which a later start finds what an earlier one left.
    """

    config: EnginesConfig
    model_name: str
    model_path: Path | None
    model_created: int
    max_batch_size: int
    clock: Clock
    environ: Mapping[str, str]
    state_dir: Path
    chosen_name: str | None = None
    default_max_tokens: int | None = None
    weights: str | None = None

    @property
    def host(self) -> EngineHost:
        return EngineHost(self.config.supervision, self.clock, self.environ, self.state_dir)


def _mock(spec: BackendSpec) -> Backend:
    from llm_runtime.engines.mock import MockBackend

    return MockBackend(
        spec.config.mock,
        model=spec.model_name,
        num_slots=spec.max_batch_size,
        model_created=spec.model_created,
        clock=spec.clock,
    )


def _llama_cpp(spec: BackendSpec) -> Backend:
    from llm_runtime.engines.llama_cpp.backend import LlamaCppBackend

    assert spec.model_path is not None
    return LlamaCppBackend(
        spec.config.llama_cpp,
        spec.host,
        num_slots=spec.config.concurrency,
        model=spec.model_name,
        model_path=spec.model_path,
        model_created=spec.model_created,
    )


def _vllm(spec: BackendSpec) -> Backend:
    from llm_runtime.engines.vllm.command import ServedModel
    from llm_runtime.engines.vllm.server import VllmBackend

    assert spec.weights is not None
    return VllmBackend(
        spec.config.vllm,
        spec.host,
        num_slots=spec.config.concurrency,
        model=ServedModel(spec.model_name, spec.weights),
        model_created=spec.model_created,
    )


def _vllm_inprocess(spec: BackendSpec) -> Backend:
    from llm_runtime.engines.vllm.command import ServedModel
    from llm_runtime.engines.vllm.inprocess import VllmInProcessBackend

    assert spec.weights is not None
    return VllmInProcessBackend(
        spec.config.vllm,
        spec.host,
        num_slots=spec.config.concurrency,
        model=ServedModel(spec.model_name, spec.weights),
        model_created=spec.model_created,
    )


def _hf(spec: BackendSpec) -> Backend:
    from llm_runtime.engines.hf.backend import HfBackend

    assert spec.weights is not None
    return HfBackend(
        spec.config.hf,
        spec.host,
        model=spec.model_name,
        weights=spec.weights,
        model_created=spec.model_created,
    )


def _upstream(spec: BackendSpec, config: OpenAIConfig) -> Backend:
    from llm_runtime.engines.openai.backend import OpenAIBackend

    return OpenAIBackend(
        config,
        model_name=spec.chosen_name,
        num_slots=spec.config.concurrency,
        model_created=spec.model_created,
        default_max_tokens=spec.default_max_tokens,
        clock=spec.clock,
    )


_BUILDERS: dict[BackendKind, Callable[[BackendSpec], Backend]] = {
    "mock": _mock,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "vllm-inprocess": _vllm_inprocess,
    "hf": _hf,
}

NEEDS_WEIGHTS: frozenset[BackendKind] = frozenset({"llama.cpp"})
NEEDS_SAFETENSORS: frozenset[BackendKind] = frozenset({"vllm", "vllm-inprocess", "hf"})


def weights_python(config: EnginesConfig, environ: Mapping[str, str]) -> str | None:
    """The interpreter of the chosen engine's environment, which can make safetensors of a GGUF model; None
    where there is none. Raises ConfigError for one that is configured and is no program."""
    if config.backend == "hf":
        from llm_runtime.engines.hf.backend import find_python

        return find_python(config.hf, environ)
    from llm_runtime.engines.vllm.command import find_python as find_vllm_python

    return find_vllm_python(config.vllm, environ)


def build_backends(spec: BackendSpec) -> list[Backend]:
    """The replicas of `spec.config.backend`: one, but for several upstreams. Built, not started."""
    if spec.config.backend == "openai":
        return [_upstream(spec, config) for config in spec.config.openai.each]
    return [_BUILDERS[spec.config.backend](spec)]
