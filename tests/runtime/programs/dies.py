"""The server with an engine whose task dies when it is told to: arguments `serve` or `uvicorn`, and what
else hangs then. Dies when a request asks for the model with `user: die`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import uvicorn

from llm_runtime import main
from llm_runtime.settings import load_settings
from tests.support.scripted import ScriptedBackend, ScriptedStream

SETTINGS = {
    "engines.backend": "mock",
    "server.port": sys.argv[2],
    "telemetry.gpu_poll_interval_s": "0",
    "telemetry.log_format": "json",
}


class Dying(ScriptedBackend):
    """`hangs`: its closing never ends, as an engine's that ignores every signal."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(on_open=self._on_open)
        self._death = asyncio.Event()
        self._hangs = hangs

    def _on_open(self, stream: ScriptedStream) -> None:
        stream.say("still alive")
        if stream.request.body.get("user") == "die":
            self._death.set()

    async def start(self, on_change: Callable[[], None]) -> None:
        await super().start(on_change)
        on_change()
        await self._death.wait()
        raise RuntimeError("the engine's task died")

    async def aclose(self) -> None:
        await super().aclose()
        if self._hangs:
            await asyncio.Event().wait()


built = main.build(load_settings(SETTINGS, {}), backend=Dying(hangs="hangs" in sys.argv))
if sys.argv[1] == "serve":
    sys.exit(main.run(built))
uvicorn.run(built.app, port=int(sys.argv[2]), log_config=None)
