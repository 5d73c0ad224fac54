"""The doctor's questions, each answered well and badly by the real thing."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from llm_runtime.commands import doctor
from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import EnginesConfig, LlamaCppConfig, ModelConfig
from llm_runtime.settings import Settings
from llm_runtime.web.config import ServerConfig


def environ_with_engine(tmp_path: Path, source: str) -> dict[str, str]:
    (tmp_path / "xllamacpp.py").write_text(source)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


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
