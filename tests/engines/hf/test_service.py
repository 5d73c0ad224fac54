"""The engine program's HTTP side under a real server, with a model that computes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from llm_runtime.engines.hf.service import MAX_BODY_BYTES
from tests.engines.hf.fake_model import WORDS
from tests.engines.hf.serving import CHAT, MESSAGES, PATIENCE_S, TEXT, Running


def events(raw: str) -> list[Any]:
    blocks = raw.removesuffix("\n\n").split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    return [orjson.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


# Answers


async def test_a_chat_is_streamed(running: Running) -> None:
    answer = await running.ask(stream=True, stream_options={"include_usage": True}, max_tokens=9)
    assert answer.headers["content-type"] == "text/event-stream"
    first, *deltas, finish, usage = events(answer.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in deltas] == WORDS
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["prompt_tokens"] == 1
    assert usage["usage"]["completion_tokens"] == len(WORDS)
    assert len({event["id"] for event in (first, *deltas, finish, usage)}) == 1


async def test_a_chat_is_answered_in_one(running: Running) -> None:
    body = (await running.ask(max_tokens=2)).json()
    assert body["choices"][0]["message"]["content"] == "One two"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


async def test_choices_and_prompts_come_one_after_another(running: Running) -> None:
    body = (await running.ask(TEXT, prompt=["a", "bcd"], n=2, max_tokens=1, seed=7)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [(len(prompt), sampling.seed) for prompt, sampling in running.model.seen] == [
        (1, 7),
        (1, 8),
        (3, 7),
        (3, 8),
    ]
    assert body["usage"]["prompt_tokens"] == 4, "a prompt counts once"
    assert body["usage"]["completion_tokens"] == 4


async def test_streamed_choices_are_told_apart(running: Running) -> None:
    answer = await running.ask(n=2, stream=True, max_tokens=1)
    choices = [event["choices"][0] for event in events(answer.text)]
    assert [choice["index"] for choice in choices] == [0, 0, 0, 1, 1, 1]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"] * 2


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
async def test_prompts_of_token_ids(running: Running, prompt: list[Any]) -> None:
    assert (await running.ask(TEXT, prompt=prompt)).status_code == 200
    assert running.model.seen[0][0] == [5, 6]


async def test_a_cap_is_set_where_the_request_names_none(running: Running) -> None:
    assert (await running.ask()).json()["usage"]["completion_tokens"] == 4


async def test_the_model_is_listed(running: Running) -> None:
    (entry,) = (await running.client.get("/v1/models")).json()["data"]
    assert entry["id"] == "m"
    assert entry["max_model_len"] == 100


# One at a time


async def test_requests_are_answered_one_at_a_time_in_their_order(running: Running) -> None:
    running.model.held = True
    first = asyncio.create_task(running.ask(TEXT, prompt="0"))
    await running.started()
    others = []
    for number in range(1, 5):
        others.append(asyncio.create_task(running.ask(TEXT, prompt=str(number))))
        await running.steps()  # on the same loop, after the request before it
    running.model.held = False
    await asyncio.gather(first, *others)
    assert [bytes(prompt).decode() for prompt, _ in running.model.seen] == ["0", "1", "2", "3", "4"]
    assert len(running.model.threads) == 1


async def test_work_shows_as_steps(running: Running) -> None:
    running.model.held = True
    asking = asyncio.create_task(running.ask())
    await running.started()
    before = await running.steps()
    async with asyncio.timeout(PATIENCE_S):
        while await running.steps() == before:
            continue
    running.model.held = False
    await asking
    rested = await running.steps()
    assert rested > before
    assert await running.steps() == rested


# Ending a run


async def test_a_run_is_over_when_its_end_is_answered(running: Running) -> None:
    running.model.held = True
    asking = asyncio.create_task(running.ask(run="7", stream=True))
    await running.started()
    assert (await running.client.delete("/runs/7")).status_code == 200
    assert running.model.num_running == 0
    told = (await asking).text
    assert "The request was cancelled." in told
    assert "[DONE]" not in told


async def test_a_waiting_run_is_ended_at_once(running: Running) -> None:
    running.model.held = True
    first = asyncio.create_task(running.ask(TEXT, prompt="first", run="1"))
    await running.started()
    second = asyncio.create_task(running.ask(TEXT, prompt="second", run="2"))
    await running.steps()
    assert (await running.client.delete("/runs/2")).status_code == 200
    assert running.model.num_running == 1
    running.model.held = False
    assert (await first).status_code == 200
    assert len(running.model.seen) == 1
    assert (await second).status_code == 499


async def test_a_run_that_comes_after_its_end_is_refused(running: Running) -> None:
    assert (await running.client.delete("/runs/9")).status_code == 200
    assert (await running.ask(run="9")).status_code == 400
    assert running.model.seen == []
    assert (await running.ask(run="10")).status_code == 200


async def test_a_run_that_is_over_may_be_ended(running: Running) -> None:
    assert (await running.ask(run="7")).status_code == 200
    assert (await running.client.delete("/runs/7")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_closed_connection_ends_the_run(running: Running, stream: bool) -> None:
    running.model.held = True
    body = orjson.dumps({"model": "m", "messages": MESSAGES, "stream": stream})
    reader, writer = await asyncio.open_unix_connection(running.path)
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
    )
    await running.started()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(PATIENCE_S):
        while running.model.num_running:
            await running.steps()
    assert (await reader.read()).count(b"data:") <= 3
    running.model.held = False
    assert (await running.ask()).status_code == 200


# Refusals and failures


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, b"{", 400, None),
        (CHAT, b"[]", 400, None),
        (CHAT, {"model": "m"}, 400, "messages"),
        (CHAT, {"model": "other", "messages": MESSAGES}, 404, "model"),
        (CHAT, {"model": "m", "messages": MESSAGES, "logprobs": True}, 400, "logprobs"),
        (CHAT, {"model": "m", "messages": MESSAGES, "temperature": 9}, 400, "temperature"),
        (
            CHAT,
            {"model": "m", "messages": MESSAGES, "chat_template_kwargs": {"x": 1}},
            400,
            "chat_template_kwargs",
        ),
        (TEXT, {"model": "m", "prompt": [1] * 100}, 400, None),
        (TEXT, {"model": "m", "prompt": ["a", "b" * 100], "stream": True}, 400, None),
        ("/v1/embeddings", {}, 404, None),
        (CHAT, b" " * (MAX_BODY_BYTES + 1), 413, None),
    ],
)
async def test_refusals(running: Running, path: str, body: Any, status: int, param: str | None) -> None:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    answer = await running.client.post(path, content=content)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["param"] == param
    assert (await running.ask()).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_is_told_and_the_next_request_is_served(
    running: Running, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    running.model.failure = RuntimeError("secret detail")
    answer = await running.ask(stream=stream)
    assert "secret detail" not in answer.text
    assert "The engine failed." in answer.text
    assert "[DONE]" not in answer.text
    if not stream:
        assert answer.status_code == 500
    assert "secret detail" in capfd.readouterr().err
    running.model.failure = None
    assert (await running.ask()).status_code == 200


def test_an_engine_that_is_broken_for_good_ends_its_program(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")
    root = Path(__file__).parents[3]
    program = [sys.executable, "-m", "tests.engines.hf.broken_engine", path]
    child = subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "LISTENING\n"
        transport = httpx2.HTTPTransport(uds=path)
        client = httpx2.Client(transport=transport, timeout=PATIENCE_S)
        with client, pytest.raises(httpx2.TransportError):
            client.post(f"http://engine{CHAT}", json={"model": "m", "messages": MESSAGES})
        _, stderr = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 1
        assert "illegal memory access" in stderr
    finally:
        child.kill()
        child.wait()
