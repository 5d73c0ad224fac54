"""A gateway whose upstream is not there when it starts."""

from __future__ import annotations

from tests.engines.openai.test_health import backend_of
from tests.engines.openai.upstreams import QUIET, fake_upstream
from tests.support.http import ask, chat_body, get, post
from tests.support.server import serve


async def test_nobody_is_told_that_a_model_does_not_exist_before_that_can_be_known() -> None:
    async with fake_upstream(models=["a", "b"]) as fake:
        port = fake.server.address.port
        await fake.server.stop_listening()
        backend = backend_of(fake.url)
        async with serve(QUIET, backend=backend) as served:
            await served.recorder.until(lambda: bool(served.recorder.states), "it was looked for")
            early = await ask(served.port, post(chat_body("a")))
            assert (early.status, early.error["code"]) == (503, "backend_unavailable")
            assert (await get(served.port, "/health/ready")).status == 503
            assert (await get(served.port, "/v1/models")).json()["data"] == []
            await fake.server.listen_again(port)
            await served.recorder.until(lambda: served.recorder.states[-1][1] == "ready", "it is there")
            assert (await ask(served.port, post(chat_body("b")))).status == 200
            assert (await ask(served.port, post(chat_body("c")))).status == 404
            metrics = (await get(served.port, "/metrics?format=prometheus")).body.decode()
            assert 'model="b"' in metrics, "a name that is known late has a label of its own all the same"
            fake.models = ["c"]
            await fake.server.stop_listening()
            await served.recorder.until(lambda: served.recorder.states[-1][1] == "crashed", "it is gone")
            refused = await ask(served.port, post(chat_body("b")))
            assert refused.status == 503, "what it had is known"
            await fake.server.listen_again(port)
            await served.recorder.until(lambda: served.recorder.states[-1][1] == "ready", "it is back")
            assert (await ask(served.port, post(chat_body("b")))).status == 404
            assert (await ask(served.port, post(chat_body("c")))).status == 200
