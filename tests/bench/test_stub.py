"""The stub is the ruler: its events, its instants and its program."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import urllib.request

import orjson
import pytest

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import now
from llm_runtime.bench.config import Target
from llm_runtime.bench.stub import serve
from llm_runtime.bench.stub_script import Composer, Script, script_for


def steps(script: Script, num_tokens: int = 16) -> list[tuple[float, bytes]]:
    return Composer(script, num_tokens, prompt_tokens=1, is_chat=True).stream()


def instants(script: Script, num_tokens: int) -> list[float]:
    return [at_s for at_s, _ in steps(script, num_tokens)]


def test_events_have_the_instants_of_the_script() -> None:
    script = Script(role_at_s=0.01, ping_at_s=0.2, first_at_s=0.5, gap_s=0.02)
    assert instants(script, num_tokens=3) == pytest.approx([0.01, 0.2, 0.5, 0.52, 0.54, 0.54])
    assert script.end_s(3) == pytest.approx(0.54)


def test_bundled_tokens_take_as_many_gaps_as_events() -> None:
    script = Script(role_at_s=None, first_at_s=0.5, gap_s=0.02, tokens_per_event=4)
    assert instants(script, num_tokens=10) == pytest.approx([0.5, 0.52, 0.54, 0.54])
    assert script.end_s(10) == pytest.approx(0.54)


def test_errors_and_losses_come_where_they_were_asked_for() -> None:
    failing = steps(Script(role_at_s=None, error_after=1))
    assert b"told_to_fail" in failing[-1][1]
    assert len(failing) == 2
    assert steps(Script(role_at_s=None, cut_after=0)) == [(0.05, b"")]


def test_a_request_may_change_the_script_but_not_invent_members() -> None:
    assert script_for(Script(), {"stub": {"first_at_s": 1.0}}).first_at_s == 1.0
    with pytest.raises(ValueError, match="speed"):
        script_for(Script(), {"stub": {"speed": 1}})


async def test_nothing_is_sent_before_its_instant_nor_much_after_the_best_of_them() -> None:
    """Lateness of single events is the machine's; that none accumulates is the stub's."""
    script = Script(role_at_s=None, first_at_s=0.02, gap_s=0.004)
    lags: list[float] = []
    async with serve(script) as stub, LoadClient(Target(f"http://127.0.0.1:{stub.port}")) as client:
        for _ in range(3):
            sent_at = now()
            body = orjson.dumps({"stream": True, "max_tokens": 20, "messages": []})
            exchange = client.send("/v1/chat/completions", body, {}, wants_stream=True, keep_text=False)
            await exchange.wait()
            assert exchange.answer is not None
            due = [sent_at + 0.02 + 0.004 * number for number in range(20)]
            reads = exchange.answer.token_read_at
            if len(reads) == 20:
                lags += [at - instant for at, instant in zip(reads, due, strict=True)]
    assert lags
    assert min(lags) >= 0
    assert min(lags) < 0.003


async def test_unknown_pages_and_bad_bodies_are_refused() -> None:
    async with serve() as stub, LoadClient(Target(f"http://127.0.0.1:{stub.port}")) as client:
        assert await client.fetch("/nothing") is None
        assert await client.first_model() == "stub"
        exchange = client.send("/v1/completions", b"{", {}, wants_stream=True, keep_text=False)
        await exchange.wait()
        assert exchange.status == 400


async def test_it_counts_what_runs_and_forgets_who_left() -> None:
    script = Script(first_at_s=60.0)
    async with serve(script) as stub, LoadClient(Target(f"http://127.0.0.1:{stub.port}")) as client:
        body = b'{"stream": true}'
        exchange = client.send("/v1/completions", body, {}, wants_stream=True, keep_text=False)
        async with asyncio.timeout(10):
            while b"num_requests_running 1\n" not in (await client.fetch("/metrics") or b""):
                pass
            exchange.give_up("timeout")
            await exchange.wait()
            while b"num_requests_running 0\n" not in (await client.fetch("/metrics") or b""):
                pass
    assert stub.num_requests == 1


def test_the_program_prints_its_address_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "llm_runtime.bench.stub", "--script", '{"first_at_s": 0.001}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as page:
            assert orjson.loads(page.read())["data"][0]["id"] == "stub"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
