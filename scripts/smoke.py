"""The two ways to start, each from nothing: `make serve` in a fresh clone, and `pip install .`.

Usage: python3 scripts/smoke.py [make] [pip]. Needs git and what the README asks for; works in a
temporary folder and removes it. Prints seconds to the first token; fails if a step does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m"
LIMIT_S = 600.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_token(port: int, process: subprocess.Popen[bytes], started_at: float) -> float:
    """Seconds from the start of the command to the first streamed token."""
    body = json.dumps(
        {"model": MODEL, "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}
    ).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    while time.monotonic() - started_at < LIMIT_S:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        choices = json.loads(line[6:])["choices"]
                        if choices and choices[0]["delta"].get("content"):
                            return time.monotonic() - started_at
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise SystemExit("no token came")


def served(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Starts `command`, waits for a token, stops it with one Ctrl-C; all of it must succeed."""
    port = int(environment["LLM_RUNTIME_PORT"])
    started_at = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        say(f"{name}: {first_token(port, process, started_at):.1f} s to the first token")
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(60)
        wait_for_group(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # make itself ends by the signal that a terminal sends to everybody; the server must not.
    if status not in ((0, -signal.SIGINT) if command[0] == "make" else (0,)):
        raise SystemExit(f"{name}: ended with status {status}")


def wait_for_group(group: int) -> None:
    """Until nobody of that process group is left."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise SystemExit("a stopped server is still there")


def clean_environment(cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLM_RUNTIME_")}
    return {**kept, "LLM_RUNTIME_PORT": str(free_port()), "LLM_RUNTIME_CACHE": str(cache)}


def by_make(folder: Path) -> None:
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = clean_environment(folder / "cache")
    served("make serve, fresh clone", ["make", "serve"], clone, environment)
    served("make serve, second start", ["make", "serve"], clone, environment)


def by_pip(folder: Path) -> None:
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    environment = clean_environment(folder / "cache")
    started_at = time.monotonic()
    subprocess.run([str(venv / "bin/pip"), "install", "--quiet", str(ROOT)], check=True, env=environment)
    say(f"pip install .: {time.monotonic() - started_at:.1f} s")
    served("llm-runtime serve", [str(venv / "bin/llm-runtime"), "serve"], folder, environment)


WAYS = {"make": by_make, "pip": by_pip}


def main() -> None:
    for way in sys.argv[1:] or WAYS:
        with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
            WAYS[way](Path(folder))


if __name__ == "__main__":
    main()
