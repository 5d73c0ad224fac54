"""The development checks: each must fail where it should, and the generated page must be fresh."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import dummy_model
from llm_runtime.bench.scenario import all_scenarios
from llm_runtime.settings import load_settings
from llm_runtime.settings_leaves import leaves
from scripts import result_docs

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("num_lines", "code", "told"), [(300, 0, ""), (301, 0, "over 300"), (401, 1, "split it")]
)
def test_a_long_module_is_mentioned_and_a_longer_one_fails(
    num_lines: int, code: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("x = 1\n" * num_lines)
    result = run("check_module_size.py", str(tmp_path))
    assert result.returncode == code
    assert told in result.stdout + result.stderr


def test_the_configuration_page_is_fresh_and_has_every_setting() -> None:
    result = run("config_docs.py", "--check")
    assert result.returncode == 0, result.stderr
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for leaf in leaves().values():
        assert f"| `{leaf.name}` | `{leaf.variable}` |" in page


def test_numbers_on_the_pages_are_those_of_the_result_files() -> None:
    result = run("result_docs.py", "--check")
    assert result.returncode == 0, result.stderr


def test_a_wrong_number_is_found_and_put_right() -> None:
    honest = next(
        path for path in sorted(result_docs.RESULTS.glob("*.json")) if result_docs.result(path.stem)
    )
    text = f"In <!-- value {honest.stem} schema s -->9.87<!-- end --> words."
    fresh = result_docs.rendered(text)
    assert fresh == text.replace("9.87", result_docs.result(honest.stem)["schema"])
    assert result_docs.rendered(fresh) == fresh


@pytest.mark.parametrize("directive", ["value honesty figures/nothing .2f", "value x", "bars"])
def test_a_directive_that_leads_nowhere_is_named(directive: str) -> None:
    with pytest.raises(ValueError, match=directive.split(maxsplit=1)[0]):
        result_docs.rendered(f"<!-- {directive} --><!-- end -->")


def test_what_was_not_measured_is_told() -> None:
    assert "(not measured yet)" in result_docs.rendered("<!-- value no-such-file a .2f -->1<!-- end -->")


def test_tables_and_null_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"figures": {"a_1": 1.234, "a_2": None}, "command": "c", "environment": {
        "python": "3", "packages": {"numpy": "2", "no": None}, "gpus": [{"name": "G"}], "dirty": True,
        "commit": "0123456789abcdef", "cpu": "X", "num_cores": 2},
        "bars": [{"figure": "a_1", "relation": "<=", "value": 2, "met": True},
                 {"figure": "a_2", "relation": ">=", "value": 5, "met": False}]}  # fmt: skip
    monkeypatch.setattr(result_docs, "result", lambda name: body)
    grid = result_docs.rendered('<!-- grid x "r=a:A" "c=1:one,2" figures/{row}_{column} .2f --><!-- end -->')
    assert "| r \\ c | one | 2 |\n| --- | ---: | ---: |\n| A | 1.23 | - |" in grid
    bars = result_docs.rendered("<!-- bars x --><!-- end -->")
    assert "| `a_1` | 1.23 | ≤ 2 | met |" in bars
    assert "| `a_2` | - | ≥ 5 | **missed** |" in bars
    made = result_docs.rendered("<!-- made x --><!-- end -->")
    assert "| `x.json` | `c` | `0123456789ab` with changes | X, 2 cores, G | Python 3, numpy 2 |" in made


def test_a_result_of_a_scenario_that_has_changed_is_marked() -> None:
    source = ROOT / "src" / "llm_runtime" / "bench" / "scenarios" / "honesty.py"
    now = hashlib.sha256(source.read_bytes()).hexdigest()
    assert not result_docs.is_outdated({"definition": {"sha256": now}})
    assert result_docs.is_outdated({"definition": {"sha256": "0" * 64}})
    assert not result_docs.is_outdated({})  # no scenario's


def test_every_scenario_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").partition("## Scenarios")[2]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(all_scenarios())


def test_the_report_has_no_measurement_of_its_own() -> None:
    """Decimals, shares and rates stand only where `make docs` puts them."""
    text = (ROOT / "docs" / "benchmark_report.md").read_text(encoding="utf-8")
    words = result_docs.DIRECTIVE.sub("", text)
    setup = {"Qwen2.5", "CC-BY-4.0", "6.5"}
    found = set(re.findall(r"[\w.-]*\d+\.\d+[\w.-]*|\d+ ?%", words))
    assert found <= setup


def gpu_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "VLLM_PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "gpu_benchmark.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)


def test_the_gpu_benchmark_says_what_it_would_run(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")  # an environment that has vLLM
    python.chmod(0o755)
    options = ["--dry-run", "--python", str(python), "--dummy-weights", "--output", str(tmp_path / "out")]
    done = gpu_benchmark(*options)
    assert done.returncode == 0, done.stderr
    assert "bench sweep" in done.stdout
    for words in (
        "slots=1,8",
        "--requests 32",
        "--concurrencies 8",
        "--output-tokens 32",
        "timeout",
        "dummy",
    ):
        assert words in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [[], ["--dummy-weights"]])
def test_the_gpu_benchmark_s_server_has_settings_that_there_are(more: list[str], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = gpu_benchmark("--dry-run", "--python", str(python), *more)
    (line,) = (line for line in done.stdout.splitlines() if "bench sweep" in line)
    words = shlex.split(line)
    server = shlex.split(words[words.index("--server") + 1].format(port=1, slots=8))
    given = dict(word.split("=", 1) for word in server[server.index("-o") + 1 :: 2])
    settings = load_settings(given, {})
    assert (settings.engines.backend, settings.engines.native_backend_concurrency) == ("vllm", 8)
    assert settings.engines.vllm.extra_arguments == ("--load-format dummy" if more else "")


def test_all_experiments_are_one_command_and_go_on_without_what_is_missing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    options = ["--dry-run", "--all", "--python", str(python), "--awq-model", "ORG/AWQ", "--model", "ORG/NAME"]
    done = gpu_benchmark(*options)
    assert done.returncode == 0, done.stderr
    assert "+ .venv/bin/llm-runtime models pull hf:ORG/NAME" in done.stdout
    sections = re.split("^== ", done.stdout, flags=re.MULTILINE)[1:]
    assert [section.split()[0] for section in sections] == [
        "gpu-engines", "gpu-vllm-max-num-seqs", "gpu-vllm-memory-share", "gpu-vllm-precision",
    ]  # fmt: skip
    lines = [line for section in sections for line in section.splitlines()[1:]]
    assert all(line.startswith("llm-runtime serve") and str(python) in line for line in lines)
    assert "backend=hf" in sections[0]
    shares = re.findall(r"gpu_memory_utilization=(\S+)", sections[2])
    assert shares == ["0.9", "0.7", "0.5", "0.3", "0.2", "0.1"]
    assert "model_path=ORG/AWQ" in sections[3]
    assert "--quantization fp8'" in sections[3]


def test_dummy_weights_are_for_every_vllm(tmp_path: Path) -> None:
    options = ["--dry-run", "--all", "--dummy-weights", "--output", str(tmp_path / "out")]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = gpu_benchmark(*options, "--python", str(python))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("llm-runtime serve")]
    assert lines
    assert all("load-format dummy" in line for line in lines if "backend=vllm" in line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [(["--odd"], 2, "unknown option"), (["--model"], 2, "needs a value"),
     (["--cpu", "--python", "false"], 2, "has no vLLM")],
)  # fmt: skip
def test_the_gpu_benchmark_refuses_what_it_cannot_do(arguments: list[str], code: int, says: str) -> None:
    done = gpu_benchmark(*arguments)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr


def test_a_model_of_dummy_weights_has_a_word_for_every_token(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    tokenizer = {"added_tokens": [{"id": 1, "content": "<s>"}], "model": {"vocab": {"a": 0}}}
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(tokenizer))
    dummy_model.write(tmp_path / "t", tmp_path / "m", layers=2)
    config = json.loads((tmp_path / "m" / "config.json").read_bytes())
    vocabulary = json.loads((tmp_path / "m" / "tokenizer.json").read_bytes())["model"]["vocab"]
    assert config["num_hidden_layers"] == 2
    assert sorted([*vocabulary.values(), 1]) == list(range(config["vocab_size"]))
