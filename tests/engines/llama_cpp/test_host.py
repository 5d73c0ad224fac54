"""The engine program: what it makes of its arguments, and how it refuses hopeless ones."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

import pytest

from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL
from llm_runtime.engines.llama_cpp import host
from llm_runtime.engines.llama_cpp.command import LaunchParameters
from llm_runtime.engines.process import EngineProcess, ProcessSpec, child_environment, scratch_directory
from llm_runtime.engines.upstream import Address, Upstream


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and no more")
    return path


def options(model: Path, *more: str) -> argparse.Namespace:
    return host.arguments(["--socket", "/run/e.sock", "--model", str(model), "--alias", "m", *more])


def test_engine_parameters(model: Path) -> None:
    given = options(
        model, "--slots", "4", "--ctx-per-slot", "1000", "--threads", "3", "--batch", "20",
        "--gpu-layers", "5", "--cache-ram-mib", "7", "--poll", "9",
    )  # fmt: skip
    params = host.engine_parameters(given, "key")
    assert params.model.path == str(model)
    assert params.model_alias == {"m"}
    assert params.hostnames == ["/run/e.sock"]
    assert (params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch) == (4, 4000, 20, 20)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (3, 3)
    assert (params.cpuparams.poll, params.cpuparams_batch.poll) == (9, 9)
    assert (params.n_gpu_layers, params.cache_ram_mib) == (5, 7)
    assert (params.endpoint_slots, params.endpoint_metrics, params.ui) == (True, True, False)
    assert (params.verbosity, params.api_keys, params.ctx_shift) == (2, ["key"], False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--slots", "17", "--batch", "16"), "--batch 16 is smaller than --slots 17"),
        (("--model", "/nonexistent/m.gguf"), "/nonexistent/m.gguf cannot be read"),
        (("--model", os.devnull), "is not a GGUF file"),
        (("--socket", "/tmp/" + "x" * 100), "longer than 100"),
    ],
)
def test_hopeless_arguments_are_named(model: Path, more: tuple[str, ...], words: str) -> None:
    assert words in str(host.problem(options(model, *more)))


def test_good_arguments_have_no_problem(model: Path) -> None:
    assert host.problem(options(model, "--slots", "16", "--batch", "16")) is None


@pytest.mark.parametrize("more", [("--slots", "0"), ("--poll", "101"), ("--port", "1"), ("--slot", "3")])
def test_other_arguments_are_refused(model: Path, more: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        options(model, *more)


def test_program_says_why_and_exits_as_hopeless(model: Path, tmp_path: Path) -> None:
    bad = LaunchParameters(model, "m", 8, 2048, 1, 4, tmp_path / "e.sock")
    done = subprocess.run(bad.command(), capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 78
    assert "--batch 4 is smaller than --slots 8" in done.stderr


@pytest.mark.engine
async def test_serves_with_its_key_and_leaves_nothing(tmp_path: Path) -> None:
    scratch = scratch_directory()
    parameters = LaunchParameters(
        ModelStore(os.environ).ensure(BUILTIN_MODEL), "tiny", 4, 512, 1, 16, scratch / "engine.sock"
    )
    environment = child_environment(os.environ, {"LLAMA_API_KEY": "right"})
    spec = ProcessSpec("llama.cpp", parameters.command(), environment, tmp_path, scratch=scratch)
    process = await EngineProcess.start(spec)
    try:
        line = await process.wait_ready(lambda: process.output.line_with_prefix("LISTENING "), 60)
        address = Address.parse(line.removeprefix("LISTENING "))
        assert address.unix_path == str(scratch / "engine.sock")
        statuses = {}
        for key in ("right", "wrong"):
            async with Upstream(address, {"authorization": f"Bearer {key}"}) as upstream:
                exchange = upstream.request("GET", "/slots")
                body = await exchange.read_all()
                statuses[key] = exchange.status
                if key == "right":
                    assert (body.count(b'"is_processing"'), body.count(b'"n_ctx":512')) == (4, 4)
        assert statuses == {"right": 200, "wrong": 401}
    finally:
        await process.stop()
    assert scratch.name not in os.listdir(scratch.parent)
    assert os.listdir(tmp_path) == []


@pytest.mark.engine
async def test_model_that_cannot_be_loaded_fails_at_once_with_the_engines_words(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    command = LaunchParameters(model, "m", 1, 512, 1, 16, tmp_path / "e.sock").command()
    spec = ProcessSpec("llama.cpp", command, child_environment(os.environ), tmp_path / "state")
    process = await EngineProcess.start(spec)
    try:
        report = await process.wait()
        assert report.code == 1
        assert "failed to load model" in report.detail
        assert str(tmp_path) not in report.public_reason
    finally:
        await process.stop()
