"""Where `model.path` leads engines that read safetensors, and the conversion, with a program that stands in
for the converter."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines import weights
from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL, ModelConfig
from llm_runtime.engines.weights import SafetensorsStore, resolve_safetensors

CONVERTER = """
import os, sys
source, target = sys.argv[1:]
assert open(source, "rb").read(4) == b"GGUF"
if "broken" in source:
    os.mkdir(target)
    sys.exit("a long story\\nValueError: no tensors")
os.mkdir(target)
open(target + "/model.safetensors", "w").write("weights")
open(target + "/config.json", "w").write("{}")
open(os.path.dirname(source) + "/conversions", "a").write(".")
"""


@pytest.fixture(autouse=True)
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "converter.py"
    program.write_text(CONVERTER)
    monkeypatch.setattr(weights, "CONVERTER", program)


def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "LLM_RUNTIME_CACHE": str(tmp_path / "cache")}


def gguf(folder: Path, name: str = "some-model.gguf", content: bytes = b"tensors") -> Path:
    path = folder / name
    path.write_bytes(b"GGUF" + content)
    return path


def num_conversions(folder: Path) -> int:
    return len((folder / "conversions").read_text())


def ensure(tmp_path: Path, source: Path) -> Path:
    return SafetensorsStore(environ(tmp_path)).ensure(str(source), sys.executable)


def test_a_gguf_file_is_converted_once_into_a_folder_of_its_name(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    store = SafetensorsStore(environ(tmp_path))
    assert store.find(str(source)) is None
    folder = store.ensure(str(source), sys.executable)
    assert folder.parent == tmp_path / "cache" / "safetensors"
    assert folder.name.startswith("some-model-")
    assert (folder / "model.safetensors").read_text() == "weights"
    assert store.ensure(str(source), None) == folder, "nothing is needed for what is there"
    assert store.find(str(source)) == folder
    assert num_conversions(tmp_path) == 1


@pytest.mark.parametrize("content", [b"tensorz", b"tensors and more"])
def test_another_file_under_the_same_name_is_another_folder(tmp_path: Path, content: bytes) -> None:
    source = gguf(tmp_path)
    before = ensure(tmp_path, source)
    gguf(tmp_path, content=content)
    assert ensure(tmp_path, source) != before


def test_the_same_file_with_another_date_is_the_same_folder(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    before = ensure(tmp_path, source)
    os.utime(source, (1, 1))
    assert ensure(tmp_path, source) == before


def test_a_failed_conversion_tells_the_last_lines_and_leaves_nothing(tmp_path: Path) -> None:
    source = gguf(tmp_path, "broken.gguf")
    with pytest.raises(ConfigError, match="ValueError: no tensors"):
        ensure(tmp_path, source)
    left = [path.name for path in (tmp_path / "cache" / "safetensors").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


def test_without_a_python_that_can_the_way_to_one_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make vllm-env"):
        SafetensorsStore(environ(tmp_path)).ensure(str(gguf(tmp_path)), None)


def test_half_a_folder_of_before_is_replaced(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    folder = ensure(tmp_path, source)
    (folder / "config.json").unlink()
    (folder / "stray").touch()
    assert ensure(tmp_path, source) == folder
    assert not (folder / "stray").exists()


def _convert(tmp_path: Path, source: Path) -> None:
    program = tmp_path / "converter.py"
    weights.CONVERTER = program
    ensure(tmp_path, source)


def test_processes_that_want_the_same_model_convert_it_once(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_convert, args=(tmp_path, source)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert num_conversions(tmp_path) == 1


# What `model.path` may say


def resolve(tmp_path: Path, path: str, name: str | None = None) -> tuple[str, str]:
    return resolve_safetensors(ModelConfig(path=path, name=name), sys.executable, environ(tmp_path))


def test_a_folder_with_a_config_is_taken_under_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model.v2"
    folder.mkdir()
    (folder / "config.json").touch()
    assert resolve(tmp_path, str(folder)) == ("My-Model.v2", str(folder))
    assert resolve(tmp_path, str(folder), "shown") == ("shown", str(folder))


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "org_1/a.b-c"])
def test_a_name_of_the_hub_is_left_to_the_engine(tmp_path: Path, name: str) -> None:
    assert resolve(tmp_path, name) == (name, name)


def test_the_builtin_model_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = gguf(tmp_path)
    monkeypatch.setattr(ModelStore, "ensure", lambda self, ref, report=None: source)
    name, folder = resolve(tmp_path, BUILTIN_MODEL)
    assert name == "smollm2-135m"
    assert (Path(folder) / "config.json").is_file()


def test_a_gguf_file_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    source = gguf(tmp_path)
    with pytest.raises(ConfigError, match=f"llm-runtime models convert {source}"):
        resolve(tmp_path, str(source))


@pytest.mark.parametrize("path", ["./nowhere/at/all", "/etc", "just-a-word", "a/b/c"])
def test_anything_else_is_refused_with_what_is_possible(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="ORG/NAME"):
        resolve(tmp_path, path)
