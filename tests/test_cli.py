"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from llm_runtime import __version__
from llm_runtime.cli import app
from llm_runtime.settings import Settings
from llm_runtime.settings_leaves import leaves

GGUF = b"GGUF" + bytes(100)


def run(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env=env, input=stdin)


def test_the_version() -> None:
    assert run("--version").stdout == f"llm-runtime {__version__}\n"


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from llm_runtime.cli import app\n"
        "heavy = {'pydantic', 'fastapi', 'uvicorn', 'yaml', 'rich', 'asyncio'}\n"
        "try:\n    app(['--help'])\n"
        "finally:\n    print('LOADED', heavy & set(sys.modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED set()" in result.stdout
    for command in ("serve", "chat", "config", "doctor", "models"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve", "--port", "x"], "llm-runtime: server.port = 'x' (from cli): it should be a valid integer"),
        (["serve", "--host", "0.0.0.0"], "llm-runtime: server.host = '0.0.0.0' can be reached"),
        (["serve", "--backend", "vlm"], "llm-runtime: engines.backend = 'vlm' (from cli)"),
        (["serve", "-o", "server.prot=1"], "did you mean server.port?"),
        (["serve", "-o", "server.port"], "write KEY=VALUE"),
        (["serve", "--config", "/no/such.yaml"], "No such file or directory"),
        (["config", "-o", "port=-1"], "greater than or equal to 0"),
    ],
)
def test_a_wrong_setting_is_one_sentence_on_stderr_and_exit_code_2(arguments: list[str], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_config_prints_yaml_that_loads_again_with_the_origins(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("scheduling: {policy: priority}\nserver: {cors_allow_origins: [a, b]}\n")
    result = run("config", "--config", str(path), "-o", "port=9", env={"LLM_RUNTIME_MODEL_NAME": "ünï: #x"})
    assert result.exit_code == 0
    settings = Settings.model_validate(yaml.safe_load(result.stdout))
    assert settings.server.port == 9
    assert settings.server.cors_allow_origins == ("a", "b")
    assert settings.scheduling.policy == "priority"
    assert settings.model.name == "ünï: #x"

    origins = [line.rsplit("  # ", 1) for line in result.stdout.splitlines() if "  # " in line]
    assert len(origins) == len(leaves())
    told = {text.strip(): origin for text, origin in origins}
    assert told["port: 9"] == "cli"
    assert told['policy: "priority"'] == f"file {path}"
    assert told['name: "ünï: #x"'] == "env LLM_RUNTIME_MODEL_NAME"
    assert told['host: "127.0.0.1"'] == "default"


def test_config_masks_secrets_and_tells_warnings() -> None:
    env = {"LLM_RUNTIME_API_KEYS": "sk-one,sk-two", "LLM_RUNTIME_REQUEST_RATE_LIMIT_BURST": "2"}
    result = run("config", env=env)
    assert 'api_keys: ["***", "***"]' in result.stdout
    assert "sk-" not in result.output
    assert result.stderr.startswith("llm-runtime: warning: admission.request_rate_limit_burst")


def test_models_are_listed_and_found_by_each_of_their_names(tmp_path: Path) -> None:
    env = {"LLM_RUNTIME_CACHE": str(tmp_path)}
    (tmp_path / "models").mkdir()
    other = tmp_path / "models" / "other.gguf"
    other.write_bytes(GGUF)

    listed = run("models", "list", env=env).stdout.splitlines()
    assert listed[0].split()[:3] == ["builtin:smollm2-135m", "98.4", "MB"]
    assert listed[1].split()[0] == str(other)

    for name in ("other", "other.gguf", str(other)):
        assert run("models", "path", name, env=env).stdout == f"{other}\n"
    builtin = {run("models", "path", *name, env=env).stdout for name in ([], ["smollm2-135m"])}
    assert builtin == {run("models", "pull", env=env).stdout}


def test_an_unknown_model_is_refused_with_those_there_are(tmp_path: Path) -> None:
    env = {"LLM_RUNTIME_CACHE": str(tmp_path)}
    for command in ("path", "pull"):
        result = run("models", command, "builtin:huge", env=env)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "builtin:smollm2-135m" in result.stderr


def test_a_model_is_converted_by_the_python_that_is_named(tmp_path: Path) -> None:
    env = {"LLM_RUNTIME_CACHE": str(tmp_path / "cache")}
    source = tmp_path / "some.gguf"
    source.write_bytes(GGUF)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nmkdir "$3" && touch "$3/config.json"\n')
    python.chmod(0o755)
    result = run("models", "convert", str(source), "--python", str(python), env=env)
    folder = Path(result.stdout.strip())
    assert (result.exit_code, folder.parent) == (0, tmp_path / "cache" / "safetensors")
    assert (folder / "config.json").is_file()
    assert "Converting some.gguf" in result.stderr
    result = run("models", "convert", str(source), "--python", str(tmp_path / "none"), env=env)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "engines.vllm.python" in result.stderr


def test_doctor_ends_with_0_or_with_1_where_serve_would_not_start() -> None:
    result = run("doctor", "-o", "backend=mock", "-o", "port=0")
    assert result.exit_code == 0
    subjects = [line.split()[1] for line in result.stdout.splitlines()]
    assert subjects == ["python", "build", "settings", "engine", "model", "port", "gpu", "cores"]

    result = run("doctor", "-o", "backend=mock", "-o", "port=0", "-o", "n_ctx=x")
    assert result.exit_code == 1
    assert "fail  settings  engines.llama_cpp.n_ctx = 'x'" in result.stdout
