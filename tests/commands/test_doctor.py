"""The doctor's questions, each answered well and badly by the real thing."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from llm_runtime.commands import doctor
from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import (
    BUILTIN_MODEL,
    EnginesConfig,
    HfConfig,
    LlamaCppConfig,
    ModelConfig,
    VllmConfig,
)
from llm_runtime.engines.weights import SafetensorsStore
from llm_runtime.settings import Settings, load_settings
from llm_runtime.web.config import ServerConfig


def environ_with_engine(tmp_path: Path, source: str) -> dict[str, str]:
    (tmp_path / "xllamacpp.py").write_text(source)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("compiled", "optimised", "status", "words"),
    [
        (False, False, "warn", "without --enable-optimizations"),
        (True, False, "warn", "compiled; the interpreter"),
        (True, True, "ok", "compiled; optimised interpreter"),
        (False, None, "ok", "pure Python (`make compiled` makes the other); unknown interpreter"),
    ],
)
def test_how_it_was_built(compiled: bool, optimised: bool | None, status: str, words: str) -> None:
    finding = doctor.build(compiled=compiled, optimised=optimised)
    assert (finding.subject, finding.status) == ("build", status)
    assert words in finding.text


def test_the_embedded_engine_loads() -> None:
    finding = doctor.engine(EnginesConfig(), os.environ)
    assert (finding.status, finding.subject) == ("ok", "engine")
    assert "xllamacpp" in finding.text


def test_an_engine_that_kills_its_process_does_not_kill_the_doctor(tmp_path: Path) -> None:
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    finding = doctor.engine(EnginesConfig(), environ_with_engine(tmp_path, source))
    assert finding.status == "fail"
    assert "SIGILL" in finding.text


def test_an_engine_that_does_not_load_tells_why(tmp_path: Path) -> None:
    finding = doctor.engine(
        EnginesConfig(), environ_with_engine(tmp_path, "raise ImportError('no libgomp')\n")
    )
    assert finding.status == "fail"
    assert finding.text.endswith("ImportError: no libgomp")


def test_an_external_engine_must_be_a_program() -> None:
    there = EnginesConfig(llama_cpp=LlamaCppConfig(server_binary=sys.executable))
    absent = EnginesConfig(llama_cpp=LlamaCppConfig(server_binary="/no/llama-server"))
    assert doctor.engine(there, os.environ).status == "ok"
    assert doctor.engine(absent, os.environ).status == "fail"


def test_the_model_is_read_in_full(tmp_path: Path) -> None:
    store = ModelStore(os.environ)
    assert doctor.model(Settings(), store).status == "ok"
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"none")
    finding = doctor.model(Settings(model=ModelConfig(path=str(bad))), store)
    assert finding.status == "fail"
    assert "is not a GGUF file" in finding.text
    assert doctor.model(Settings(engines=EnginesConfig(backend="mock")), store).status == "ok"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_taken_port_is_found(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        taken = doctor.port(ServerConfig(host="127.0.0.1", port=number))
    assert taken.status == "fail"
    assert f"127.0.0.1:{number} is taken" in taken.text
    assert doctor.port(ServerConfig(host=host, port=0)).status == "ok"


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    finding = doctor.port(ServerConfig(host="192.0.2.1", allow_unauthenticated=True))
    assert finding.status == "fail"
    assert "cannot be bound" in finding.text


def test_gpus_are_what_the_driver_says(tmp_path: Path) -> None:
    assert doctor.gpu(EnginesConfig(), {"PATH": "/nowhere"}).status == "ok"
    layers = EnginesConfig(llama_cpp=LlamaCppConfig(n_gpu_layers=99))
    assert doctor.gpu(layers, {"PATH": "/nowhere"}).status == "warn"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\n")
    program.chmod(0o755)
    assert doctor.gpu(layers, {"PATH": str(tmp_path)}).text == "NVIDIA H200, 143771 MiB"
    program.write_text("#!/bin/sh\necho 'driver mismatch' >&2\nexit 9\n")
    assert doctor.gpu(layers, {"PATH": str(tmp_path)}).status == "warn"


@pytest.mark.parametrize("text", ["max 100000\n", "", "200000000 100000\n"])
def test_a_cgroup_without_a_tight_limit_is_no_warning(text: str, tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert doctor.cores(limit) == doctor.cores(tmp_path / "none")


def test_a_container_that_may_use_less_than_it_sees_is_warned(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("50000 100000\n")
    finding = doctor.cores(limit)
    assert finding.status == "warn"
    assert "0.5 allowed" in finding.text
    assert "LLM_RUNTIME_N_THREADS" in finding.text


def test_vllm_is_looked_for_without_being_loaded(tmp_path: Path) -> None:
    found = doctor.engine(EnginesConfig(backend="vllm", vllm=VllmConfig(python=sys.executable)), os.environ)
    assert (found.status, found.text.startswith(f"{sys.executable} has no vLLM")) == ("fail", True)
    program = tmp_path / "serve"
    program.touch(0o755)
    for command, status in ((f"{program} serve", "ok"), (f"{tmp_path}/none serve", "fail")):
        config = EnginesConfig(backend="vllm", vllm=VllmConfig(command=command))
        assert doctor.engine(config, os.environ).status == status
    contradicting = VllmConfig(command=str(program), extra_arguments="--port 1")
    assert doctor.engine(EnginesConfig(backend="vllm", vllm=contradicting), os.environ).status == "fail"
    found = doctor.engine(EnginesConfig(backend="vllm-inprocess"), os.environ)
    assert found.status == "fail"


def test_weights_that_would_have_to_be_converted_are_told_apart_from_those_that_are(tmp_path: Path) -> None:
    settings = load_settings({"backend": "vllm"}, {})
    store = ModelStore({}, folder=tmp_path / "models")
    assert doctor.model(settings, store).status == "warn"
    folder = SafetensorsStore({}, models=store)._folder_of(store.ensure(BUILTIN_MODEL))
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert doctor.model(settings, store) == doctor.Finding("model", "ok", str(folder))
    other = load_settings({"backend": "vllm", "model.path": "org/name"}, {})
    assert doctor.model(other, store).status == "ok"


def test_a_model_of_the_hub_has_to_be_here(tmp_path: Path) -> None:
    settings = load_settings({"backend": "hf", "model.path": "hf:org/name"}, {})
    found = doctor.model(settings, ModelStore({"LLM_RUNTIME_CACHE": str(tmp_path)}))
    assert found.status == "fail"
    assert "llm-runtime models pull hf:org/name" in found.text


def test_transformers_is_looked_for_without_being_loaded(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    found = doctor.engine(EnginesConfig(backend="hf", hf=HfConfig(python=str(bare))), os.environ)
    assert found.status == "fail"
    assert "lacks torch, transformers" in found.text
    for name, version in (("torch", "2.9"), ("transformers", "4.57.1")):
        for part in (name, f"{name}-{version}.dist-info"):
            (tmp_path / "packages" / part).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text("raise RuntimeError('loaded')")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (tmp_path / "packages" / f"{name}-{version}.dist-info" / "METADATA").write_text(about)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    found = doctor.engine(EnginesConfig(backend="hf", hf=HfConfig(python=sys.executable)), environ)
    assert (found.status, found.text) == ("ok", f"hf: transformers 4.57.1, torch 2.9, by {sys.executable}")
