"""What a newcomer meets, as a result file: seconds to the first token, and a session with `openai`.

    python benchmarks/first_steps.py [--output benchmarks/results/first-steps.json]

The seconds are those of `scripts/smoke.py`: `make serve` in a fresh clone, again, and `pip install .`, with
whatever of packages this machine has cached. The session is with the server that such a clone starts, over
the embedded model, at temperature 0.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import APIStatusError, OpenAI

from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.facts import environment
from llm_runtime.bench.files import write_json
from llm_runtime.bench.launch import launched
from llm_runtime.bench.serve_command import serve_command

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "llm-runtime/first-steps/1"
SECONDS = re.compile(r"^(?P<what>.+?): (?P<seconds>[\d.]+) s( to the first token)?$", re.MULTILINE)
ASK: dict[str, Any] = {
    "model": MODEL, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 24,
    "temperature": 0, "seed": 1,
}  # fmt: skip


def seconds() -> dict[str, float]:
    """By what was waited for."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "smoke.py")], stdout=subprocess.PIPE, text=True, check=True
    )
    return {found["what"]: float(found["seconds"]) for found in SECONDS.finditer(done.stdout)}


def transcript(url: str) -> dict[str, str]:
    """What the client's objects look like: of a plain reply, of a streamed one, of an error."""
    with OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        plain = client.chat.completions.create(**ASK)
        chunks = list(
            client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
        )
        try:
            client.chat.completions.create(**{**ASK, "messages": []})
        except APIStatusError as error:
            refused = f"{type(error).__name__}: {error}"
    few = [*chunks[:3], *chunks[-2:]]
    lines = [chunk.model_dump_json(exclude_none=True) for chunk in few]
    lines.insert(3, f"... {len(chunks) - len(few)} more ...")
    return {"plain": plain.model_dump_json(exclude_none=True, indent=2), "streamed": "\n".join(lines),
            "refused": refused}  # fmt: skip


async def session() -> dict[str, str]:
    """`transcript` with a server of our own."""
    async with launched(serve_command("llama.cpp", {}), {}, "/health/ready") as url:
        return await asyncio.to_thread(transcript, url)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/first-steps.json")
    options = parser.parse_args(arguments)
    facts = environment()
    told = asyncio.run(session())
    body = {
        "schema": SCHEMA,
        "command": "python benchmarks/first_steps.py",
        "environment": facts,
        "openai": importlib.metadata.version("openai"),
        "seconds": seconds(),
        "transcript": told,
    }
    write_json(options.output, body)
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
