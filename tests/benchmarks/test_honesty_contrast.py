"""The contrast with another tool: what the truth is, what the tool is asked, what of it is kept."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import honesty_contrast
from benchmarks.honesty_contrast import CASES, Case

OTHER_TOOL = """
import json, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("noise\\n9.9.9")
    sys.exit()
if "refuse" in sys.argv[0]:
    sys.exit("no such option")
folder, name = (arguments[arguments.index(o) + 1] for o in ("--result-dir", "--result-filename"))
figures = {"mean_ttft_ms": 100.0, "mean_itl_ms": 20.0, "mean_e2el_ms": 400.0, "completed": 64, "failed": 0,
           "other": 1, "asked": arguments}
json.dump(figures, open(f"{folder}/{name}", "w"))
"""


def other_tool(folder: Path, name: str = "tool.py") -> str:
    (folder / name).write_text(OTHER_TOOL)
    return shlex.join([sys.executable, str(folder / name)])


def test_without_a_queue_the_truth_is_the_script() -> None:
    truth = CASES["open_1000"].truth()
    assert truth == pytest.approx({"mean_ttft_ms": 200.0, "mean_itl_ms": 20.0, "mean_e2el_ms": 400.0})


def test_behind_a_cap_the_truth_counts_the_wait() -> None:
    # Two places of 0.4 s each, ten requests per second: the third is due at 0.2 s and starts at 0.4 s.
    truth = Case(10.0, 2, 3).truth()
    assert truth["mean_e2el_ms"] == pytest.approx(400 + 200 / 3)
    assert truth["mean_itl_ms"] == pytest.approx(20)


def test_both_tools_measure_and_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    arguments = [
        "--quick",
        "--vllm",
        other_tool(tmp_path),
        "--tokenizer",
        str(tmp_path),
        "--output",
        str(path),
    ]
    assert honesty_contrast.main(arguments) == 0
    body = json.loads(path.read_bytes())
    assert body["tools"]["vllm bench serve"] == "9.9.9"
    case = body["cases"]["closed_8"]
    assert case["vllm bench serve"]["errors"] == {
        "mean_ttft_ms": -0.5, "mean_itl_ms": 0.0, "mean_e2el_ms": 0.0
    }  # fmt: skip
    assert "other" not in case["vllm bench serve"]
    assert abs(case["llm-runtime"]["errors"]["mean_e2el_ms"]) < 0.2
    command = case["vllm bench serve"]["command"]
    assert "--max-concurrency 8" in command
    assert str(tmp_path) not in command
    assert "-50.0%" in capsys.readouterr().out


def test_a_tool_that_fails_ends_the_run(tmp_path: Path) -> None:
    import subprocess

    with pytest.raises(subprocess.CalledProcessError):
        honesty_contrast.main(["--quick", "--vllm", other_tool(tmp_path, "refuse.py"), "--tokenizer", "t",
                               "--output", str(tmp_path / "r.json")])  # fmt: skip
    assert not (tmp_path / "r.json").exists()
