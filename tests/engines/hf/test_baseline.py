"""`serve/baseline_hf.py` as a person starts it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from llm_runtime.engines.hf.backend import find_python
from tests.engines.hf.conftest import CONFIG

pytestmark = pytest.mark.hf

SCRIPT = Path(__file__).parents[3] / "serve" / "baseline_hf.py"
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def program(weights: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program and its address."""
    python = find_python(CONFIG, os.environ)
    command = [
        python,
        str(SCRIPT),
        "--model",
        str(weights),
        "--name",
        "smol",
        "--port",
        "0",
        "--threads",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout.readline().removeprefix("LISTENING ").strip()
        finally:
            child.kill()


def test_the_official_client_is_served(program: tuple[Any, str]) -> None:
    client = openai.OpenAI(base_url=f"{program[1]}/v1", api_key="none", timeout=WITHIN_S, max_retries=0)
    assert [model.id for model in client.models.list()] == ["smol"]
    question: Any = {
        "model": "smol",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    plain = client.chat.completions.create(**question)
    assert plain.choices[0].message.content == "The capital of France is Paris."
    chunks = list(
        client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage == plain.usage
    text_completion = client.completions.create(model="smol", prompt=["One", "Two"], max_tokens=1)
    assert [choice.index for choice in text_completion.choices] == [0, 1]
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="One")


def test_requests_at_once_are_served_one_after_another(program: tuple[Any, str]) -> None:
    def ask(number: int) -> int:
        body = {"model": "smol", "prompt": f"Number {number}", "max_tokens": 2}
        return httpx2.post(f"{program[1]}/v1/completions", json=body, timeout=WITHIN_S).status_code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [200] * 4


def test_it_ends_at_once_when_asked(program: tuple[subprocess.Popen[str], str]) -> None:
    """The last test here; also in the middle of an answer."""
    child, url = program
    body = {"model": "smol", "prompt": "One", "max_tokens": 500, "stream": True, "ignore_eos": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=WITHIN_S) as answer:
        next(answer.iter_raw())
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == -signal.SIGTERM
