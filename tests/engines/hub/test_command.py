"""`llm-runtime models` with models of a hub, as a person types it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.assets import resolve_model, served_name
from llm_runtime.engines.config import ModelConfig
from llm_runtime.engines.hub.store import HubStore
from llm_runtime.engines.weights import resolve_safetensors
from tests.engines.hub.fake_hub import COMMIT, REPO, FakeHub
from tests.engines.hub.pulling import GGUF, GGUF_REF, REF, bring

WITHIN_S = 60


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("llm-runtime")), "models", *arguments]


def environment(tmp_path: Path, hub: FakeHub, **more: str) -> dict[str, str]:
    # A proxy that nobody runs: this machine's own addresses are asked without it.
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    return {**os.environ, **proxies, "LLM_RUNTIME_CACHE": str(tmp_path), "HF_ENDPOINT": hub.hub_url, **more}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def test_a_pull_prints_what_makes_serve_use_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    done = run(environment(tmp_path, hub, HF_TOKEN="hf_secret"), "pull", f"hf:{REPO}")
    folder = tmp_path / "models" / "hf" / COMMIT[:12] / REPO
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "export LLM_RUNTIME_BACKEND=vllm",
        f"export LLM_RUNTIME_MODEL_PATH={folder}",
        f"export LLM_RUNTIME_MODEL_NAME={REPO}",
    ]
    assert (folder / "model.safetensors").is_file()
    assert "hf_secret" not in done.stdout + done.stderr


def test_the_lines_are_safe_for_a_shell(hub: FakeHub, tmp_path: Path) -> None:
    place = tmp_path / "a folder; with $(things)"
    done = run(environment(place, hub), "pull", f"hf:{REPO}:model-Q4_1.gguf")
    assert done.returncode == 0, done.stderr
    script = f'{done.stdout}\nprintf \'%s|%s\' "$LLM_RUNTIME_BACKEND" "$LLM_RUNTIME_MODEL_PATH"'
    shown = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    backend, path = shown.split("|")
    assert backend == "llama.cpp"
    assert Path(path).read_bytes() == GGUF
    assert shlex.quote(path) in done.stdout


def test_list_and_path_know_them(hub: FakeHub, tmp_path: Path, store: HubStore) -> None:
    pulled, gguf = bring(hub, store), bring(hub, store, GGUF_REF)
    environ = environment(tmp_path, hub)
    listed = run(environ, "list").stdout
    assert f"hf:{REPO} " in listed
    assert f"hf:{REPO}:model-Q4_1.gguf " in listed
    assert run(environ, "path", f"hf:{REPO}").stdout.strip() == str(pulled.path)
    assert run(environ, "path", f"hf:{REPO}:model-Q4_1.gguf").stdout.strip() == str(gguf.path)
    assert run(environ, "path", f"hf:{REPO}@{COMMIT[:12]}").stdout.strip() == str(pulled.path)
    absent = run(environ, "path", "hf:org/other")
    assert absent.returncode == 2
    assert "`llm-runtime models pull hf:org/other` brings it" in absent.stderr


def test_of_two_commits_the_later_has_the_plain_name(hub: FakeHub, store: HubStore) -> None:
    bring(hub, store)
    hub.commit = "f" * 40
    later = bring(hub, store)
    assert [(model.ref, model.path.parts[-3]) for model in store.models()] == [
        (f"hf:{REPO}", "f" * 12),
        (f"hf:{REPO}@{COMMIT[:12]}", COMMIT[:12]),
    ]
    assert later.path.parts[-3] == "f" * 12


def test_refusals_end_with_the_code_for_wrong_configuration(hub: FakeHub, tmp_path: Path) -> None:
    for arguments, words in [
        (("pull", "hf:org/none"), "the hub has no model hf:org/none"),
        (("pull", "hf:nothing"), "write hf:ORG/NAME"),
        (("pull", f"hf:{REPO}", "--hf-endpoint", "nowhere"), "HF_ENDPOINT"),
    ]:
        done = run(environment(tmp_path, hub), *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stdout == ""


def test_an_interrupted_pull_ends_at_once_and_is_continued(hub: FakeHub, tmp_path: Path) -> None:
    """Also when the hub has gone silent in the middle of a file."""
    silent = threading.Event()
    # What was sent is more than the system keeps on its way: the client must have taken some of it.
    hub.files["model.safetensors"] = bytes(range(256)) * 160_000
    hub.stall_after["model.safetensors"] = 30_000_000
    hub.stalled = silent
    interrupted = subprocess.Popen(
        command("pull", f"hf:{REPO}", "--workers", "2"),
        env=environment(tmp_path, hub),
        stdout=subprocess.PIPE,
        text=True,
    )
    with interrupted as child:
        try:
            assert silent.wait(WITHIN_S)
            child.send_signal(signal.SIGINT)
            stdout, _ = child.communicate(timeout=10)
        finally:
            child.kill()
            hub.stall_after.clear()
            hub.resume.set()
    assert child.returncode == 130
    assert stdout == ""
    hub.requests.clear()
    assert run(environment(tmp_path, hub), "pull", f"hf:{REPO}").returncode == 0
    (request,) = hub.gets("model.safetensors")
    assert int(request.headers["range"].removeprefix("bytes=").removesuffix("-")) > 10_000_000


# As model.path


def test_a_file_of_the_hub_is_served_by_llama_cpp(hub: FakeHub, tmp_path: Path, store: HubStore) -> None:
    environ = {"LLM_RUNTIME_CACHE": str(tmp_path)}
    config = ModelConfig(path=f"hf:{REPO}:model-Q4_1.gguf")
    with pytest.raises(ConfigError, match=r"models pull hf:org/model:model-Q4_1\.gguf"):
        resolve_model(config, environ)
    path = bring(hub, store, GGUF_REF).path
    assert resolve_model(config, environ) == ("model-Q4_1", path)
    bring(hub, store, REF)
    with pytest.raises(ConfigError, match="is a folder"):
        resolve_model(ModelConfig(path=f"hf:{REPO}"), environ)


def test_a_model_of_the_hub_is_served_by_engines_that_read_folders(
    hub: FakeHub, tmp_path: Path, store: HubStore
) -> None:
    environ = {"LLM_RUNTIME_CACHE": str(tmp_path)}
    config = ModelConfig(path=f"hf:{REPO}")
    with pytest.raises(ConfigError, match="models pull hf:org/model"):
        resolve_safetensors(config, None, environ)
    path = bring(hub, store).path
    assert resolve_safetensors(config, None, environ) == (REPO, str(path))
    assert resolve_safetensors(ModelConfig(str(path)), None, environ) == ("model", str(path))
    bring(hub, store, GGUF_REF)
    with pytest.raises(ConfigError, match="this engine reads folders"):
        resolve_safetensors(ModelConfig(path=f"hf:{REPO}:model-Q4_1.gguf"), None, environ)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hf:org/Name-1.5", "org/Name-1.5"),
        ("hf:org/name@v1", "org/name"),
        ("hf:org/name:q/x-Q4.gguf", "x-Q4"),
    ],
)
def test_what_clients_call_a_model_of_the_hub(path: str, name: str) -> None:
    assert served_name(ModelConfig(path=path)) == name
    assert served_name(ModelConfig(path=path, name="mine")) == "mine"
