"""Suites that others wrote, against the runtime over the embedded engine: who passes, and why not.

    python benchmarks/conformance.py [--out benchmarks/results/conformance.json]

- The `openai` client's own tests of chat, completions, embeddings, responses and models, from its
  source distribution.
- `llm-comply`, for the chat, responses and messages APIs.

They get an environment of their own (`.venv-conformance`). The client's tests name the models they
want, so the server is started under that name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_runtime.bench.facts import environment
from llm_runtime.bench.launch import free_port

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-conformance"
OPENAI = "openai==3.57.0"
PACKAGES = (
    "openai[aiohttp]==3.57.0", "pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-xdist", "inline-snapshot",
    "llm-comply==0.5.0",
)  # fmt: skip
SDK_FILES = {
    "chat": ("tests/api_resources/chat/test_completions.py", "gpt-6-astra"),
    "completions": ("tests/api_resources/test_completions.py", "gpt-3.5-turbo-instruct"),
    "embeddings": ("tests/api_resources/test_embeddings.py", "text-embedding-3-small"),
    "responses": ("tests/api_resources/test_responses.py", "gpt-6-astra"),
    "models": ("tests/api_resources/test_models.py", "gpt-6-astra"),
}
SELECTED = {"models": "list or retrieve"}
COMPLY = ("openai-chat", "open-responses", "anthropic")
START_LIMIT_S = 120.0


def prepare() -> Path:
    """The folder of the client's sources; makes the environment if it is not there."""
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    subprocess.run([str(VENV / "bin/pip"), "install", "--quiet", *PACKAGES], check=True)
    folder = VENV / "sdist"
    if not folder.exists():
        folder.mkdir()
        subprocess.run(
            [str(VENV / "bin/pip"), "download", "--quiet", "--no-deps", "--no-binary", "openai", OPENAI,
             "--dest", str(folder)],
            check=True,
        )  # fmt: skip
        (archive,) = folder.glob("openai-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    (sources,) = (path for path in folder.iterdir() if path.is_dir())
    return sources


@contextmanager
def serving(model: str) -> Iterator[str]:
    """The runtime over the embedded engine under that model name; a small cap keeps answers short."""
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLM_RUNTIME_")}
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("llm-runtime")), "serve", "--port", str(port)],
        env={**clean, "LLM_RUNTIME_MODEL_NAME": model, "LLM_RUNTIME_DEFAULT_MAX_TOKENS": "64"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_LIMIT_S
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server did not start")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def sdk_tests(sources: Path, name: str, url: str) -> dict[str, Any]:
    """Counts, and each failure with the last line of its error."""
    file, _ = SDK_FILES[name]
    report = VENV / f"{name}.xml"
    selection = SELECTED.get(name, "create")
    subprocess.run(
        [str(VENV / "bin/python"), "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-k", selection,
         file, f"--junitxml={report}"],
        cwd=sources, env={**os.environ, "TEST_API_BASE_URL": f"{url}/v1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    cases = list(ET.parse(report).iter("testcase"))
    failures = {}
    for case in cases:
        for failed in (*case.iter("failure"), *case.iter("error")):
            failures[f"{case.get('classname', '').rsplit('.', 1)[-1]}.{case.get('name')}"] = (
                failed.get("message") or ""
            ).splitlines()[0][:300]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - skipped - len(failures),
        "failed": len(failures),
        "skipped": skipped,
        "failures": failures,
    }


def comply(url: str, dialect: str, model: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(VENV / "bin/llm-comply"), "--format", dialect, "-u", f"{url}/v1", "-k", "x", "-m", model],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    tally = re.search(r"(\d+)/(\d+) passed", text)
    return {
        "passed": int(tally[1]) if tally else None,
        "cases": int(tally[2]) if tally else None,
        "lines": [line.strip() for line in text.splitlines() if line.strip()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/conformance.json")
    out: Path = parser.parse_args().out
    sources = prepare()
    results: dict[str, Any] = {"openai_sdk": {}, "llm_comply": {}}
    for name, (_, model) in SDK_FILES.items():
        with serving(model) as url:
            results["openai_sdk"][name] = found = sdk_tests(sources, name, url)
        sys.stdout.write(f"openai {name}: {found['passed']} passed, {found['failed']} failed\n")
    with serving("smollm2-135m") as url:
        for dialect in COMPLY:
            results["llm_comply"][dialect] = found = comply(url, dialect, "smollm2-135m")
            sys.stdout.write(f"llm-comply {dialect}: {found['passed']} of {found['cases']} passed\n")
    body = {"command": " ".join(sys.argv), "packages": PACKAGES, "environment": environment(), **results}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
