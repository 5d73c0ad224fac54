"""A gateway over two upstreams, each under the test's control."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.engines.openai.upstreams import QUIET, Answer, Fake, fake_upstream, reply, sing
from tests.engines.upstream.stubs import Peer
from tests.support.http import Reply, ask, chat_body, connected, get, post
from tests.support.http import Stream as StreamedReply
from tests.support.server import Served, serve

THRESHOLD = {"routing.breaker_failures": "3", "routing.breaker_open_s": "30"}


@dataclass
class Fleet:
    """first: what the router is led to, as long as it takes requests; second: the other one."""

    first: Fake
    second: Fake
    served: Served

    @property
    def calls(self) -> tuple[int, int]:
        return len(self.first.asked), len(self.second.asked)

    async def ask(self, *, stream: bool = False, headers: Mapping[str, str] | None = None) -> Reply:
        return await ask(self.served.port, post(chat_body("m", stream=stream), headers=headers))

    async def streamed(self) -> StreamedReply:
        async with connected(self.served.port) as client:
            await client.send(post(chat_body("m", stream=True)))
            _, stream = await client.streamed()
        return stream

    async def text(self, *, stream: bool) -> str:
        """Of an answer that is whole."""
        if not stream:
            got = await self.ask()
            assert got.status == 200, got.body
            content: str = got.json()["choices"][0]["message"]["content"]
            return content
        streamed = await self.streamed()
        assert streamed.done
        assert sum("role" in chunk["choices"][0]["delta"] for chunk in streamed.chunks) == 1
        return streamed.text

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        text = (await get(self.served.port, "/metrics?format=prometheus")).body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def breaker(self, replica: str) -> str:
        for state in ("closed", "open", "half_open"):
            if await self.metric("llm_runtime_replica_breaker", replica=replica, state=state):
                return state
        raise AssertionError("no state")


@contextlib.asynccontextmanager
async def fleet(
    first: Answer, second: Answer = sing, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """Of two idle replicas the one with more slots is asked first: here the first one."""
    async with fake_upstream(first) as a, fake_upstream(second) as b:
        wanted = {**QUIET, "engines.backend": "openai", "engines.openai.url": f"{a.url}, {b.url}"}
        async with serve({**wanted, **(settings or {})}) as served:
            replicas = served.runtime.pools[0].dispatcher.replicas
            await served.recorder.until(lambda: all(r.ready for r in replicas.values()), "both are there")
            replicas["openai-1"].num_slots -= 1  # of two idle ones the larger goes first
            yield Fleet(a, b, served)
            await served.at_rest()


def answers(raw: bytes) -> Answer:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(raw)

    return answer


def status(line: str, **headers: str) -> bytes:
    return reply({"error": {"message": "no", "type": "x"}}, line, **headers)


async def resets(peer: Peer, request: bytes) -> None:
    peer.reset()


async def hangs(peer: Peer, request: bytes) -> None:
    await peer.closed()
