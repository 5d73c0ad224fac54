"""F55, F50: what the server says of itself while an upstream hangs, stops, flaps or is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from tests.engines.openai.upstreams import QUIET, fake_upstream, gateway
from tests.field.fleet import Fleet
from tests.support.http import ask, chat_body, connected, get, post
from tests.support.server import MOCK, serve

PROGRAM = """
import http.server, json, sys

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def say(self, body):
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.say({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "ok"}
        self.say({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def log_message(self, *words):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def upstream_process() -> AsyncIterator[tuple[int, int]]:
    """Its port and its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.kill()
        await process.communicate()


async def test_f55_b_a_stopped_process_leaves_the_rotation_and_comes_back() -> None:
    quick = {"engines.openai.health_interval_s": "0.1", "engines.openai.health_timeout_s": "0.2",
             "limits.request_timeout_s": "0.5", "routing.breaker_silence_s": "0.3"}  # fmt: skip
    async with upstream_process() as (port, pid), fake_upstream() as other:
        urls = f"http://127.0.0.1:{port},{other.url}"
        settings = {**QUIET, **quick, "engines.backend": "openai", "engines.openai.url": urls}
        async with serve(settings) as served:
            recorder, replicas = served.recorder, served.runtime.pools[0].dispatcher.replicas
            await recorder.until(lambda: all(r.ready for r in replicas.values()), "both are there")
            os.kill(pid, signal.SIGSTOP)
            try:
                await recorder.until(lambda: recorder.states[-1][:2] == ("openai-0", "crashed"), "it is out")
                assert (await get(served.port, "/health/ready")).status == 200, "the other one serves"
                for _ in range(5):
                    assert (await ask(served.port, post(chat_body("m")))).status == 200
            finally:
                os.kill(pid, signal.SIGCONT)
            await recorder.until(lambda: recorder.states[-1][:2] == ("openai-0", "ready"), "it is back")


async def test_f55_h_all_upstreams_down_is_alive_and_not_ready() -> None:
    quick = {"engines.openai.health_interval_s": "0.05", "engines.openai.max_health_misses": "1"}
    async with (
        fake_upstream() as a,
        fake_upstream() as b,
        gateway(a, {**quick, "engines.openai.url": f"{a.url},{b.url}"}) as served,
    ):
        recorder, replicas = served.recorder, served.runtime.pools[0].dispatcher.replicas
        await recorder.until(lambda: all(r.ready for r in replicas.values()), "both are there")
        await a.server.stop_listening()
        await recorder.until(lambda: not replicas["openai-0"].ready, "one is gone")
        assert (await get(served.port, "/health/ready")).status == 200
        await b.server.stop_listening()
        await recorder.until(lambda: not any(r.ready for r in replicas.values()), "both are gone")
        assert (await get(served.port, "/health/live")).status == 200
        ready = await get(served.port, "/health/ready")
        assert ready.status == 503
        assert "does not accept connections" in ready.json()["reason"]
        assert (await Fleet(a, b, served).ask()).status == 503


async def test_f55_g_liveness_answers_at_once_while_huge_bodies_are_read() -> None:
    messages = [{"role": "user", "content": "x" * (6 * 1024 * 1024)}]
    big = post({"model": "no-such", "messages": messages})
    async with serve({**MOCK, "server.max_body_bytes": str(16 * 1024 * 1024)}) as served:
        async with connected(served.port) as client:
            sending = asyncio.create_task(client.send(big * 3))
            loop, slowest_s = asyncio.get_running_loop(), 0.0
            for _ in range(30):
                asked_at = loop.time()
                assert (await get(served.port, "/health/live")).status == 200
                slowest_s = max(slowest_s, loop.time() - asked_at)
            await sending
            for _ in range(3):
                assert (await client.reply()).status == 404
        assert slowest_s < 0.5


async def test_f50_every_scrape_shows_every_request_and_never_goes_down() -> None:
    """One process serves: what is counted is counted in one place."""
    quick = {**MOCK, "engines.mock.prefill_latency_ms": "0", "engines.mock.decode_latency_ms": "0"}
    async with serve(quick) as served:

        async def client() -> None:
            async with connected(served.port) as connection:
                for _ in range(50):
                    await connection.send(post(chat_body("mock", max_tokens=1)))
                    assert (await connection.reply()).status == 200

        await asyncio.gather(*(client() for _ in range(20)))
        await served.settled(1000)
        seen = []
        for _ in range(20):
            text = (await get(served.port, "/metrics?format=prometheus")).body.decode()
            seen.append(
                sum(
                    sample.value
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                    if sample.name == "llm_runtime_requests_total"
                )
            )
        assert seen == [1000.0] * 20
