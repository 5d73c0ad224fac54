"""Several upstreams as replicas of one pool: models where they are, and the load shared."""

from __future__ import annotations

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import fake_upstream, gateway
from tests.field.fleet import fleet, hangs
from tests.support.http import Reply, ask, chat_body, connected, get, post

A, B = "openai-0", "openai-1"


async def test_an_upstream_that_only_one_model_is_on() -> None:
    """Each model is asked for where it is; and when that is gone, nobody waits for the other."""
    settings = {"engines.openai.health_interval_s": "0.05", "engines.openai.max_health_misses": "1"}
    async with (
        fake_upstream(models=["m", "x"]) as a,
        fake_upstream(models=["m", "y"]) as b,
        gateway(a, {**settings, "engines.openai.url": f"{a.url},{b.url}"}) as served,
    ):
        recorder, replicas = served.recorder, served.runtime.pools[0].dispatcher.replicas
        await recorder.until(lambda: all(r.ready for r in replicas.values()), "both are there")
        listed = {model["id"] for model in (await get(served.port, "/v1/models")).json()["data"]}
        assert listed == {"m", "x", "y"}
        for model, fake in (("x", a), ("y", b)) * 4:
            before = len(fake.asked)
            assert (await ask_for(served.port, model)).status == 200
            assert len(fake.asked) == before + 1
        await b.server.stop_listening()
        await recorder.until(lambda: recorder.states[-1][:2] == (B, "crashed"), "it is gone")
        assert (await ask_for(served.port, "y")).status == 503
        assert (await ask_for(served.port, "x")).status == 200
        assert (await get(served.port, "/health/ready")).status == 200


async def ask_for(port: int, model: str) -> Reply:
    return await ask(port, post(chat_body(model)))


async def test_several_upstreams_share_the_load() -> None:
    async with fleet(hangs, hangs) as f:
        clients = []
        for _ in range(8):
            client = connected(f.served.port)
            await (await client.__aenter__()).send(post(chat_body("m", stream=True)))
            clients.append(client)
        await f.served.recorder.until(lambda: len(f.served.recorder.dispatches) == 8, "all run")
        replicas = [replica for _, replica in f.served.recorder.dispatches]
        assert replicas.count(A) == replicas.count(B) == 4
        for client in clients:
            await client.__aexit__(None, None, None)
        await f.served.settled(8)
        assert {record.outcome for record in f.served.recorder.records} == {Outcome.CANCELLED}
