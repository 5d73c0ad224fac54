"""`UpstreamWatch`: keeps looking whether the upstream is there, gently, and says when that changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendUnavailable
from llm_runtime.engines.base import SignsOfLife
from llm_runtime.engines.openai.probe import Missed, Probe, Seen
from llm_runtime.engines.openai.reachability import Reachability

MODELS_MAX_AGE_S = 60.0
MIN_GAP_S = 0.1
JITTER = 0.1


class UpstreamWatch:
    """`run` is one task of the backend's; everything else may be called from anywhere on the loop.

    on_models: told of a list of models, when one was read; returns whether there is anything to serve.
    on_change: told when `reachability.up` or its reason changed.
    """

    def __init__(
        self,
        probe: Probe,
        clock: Clock,
        *,
        interval_s: float,
        max_misses: int,
        on_models: Callable[[list[str] | None], bool],
        on_change: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._interval_s = interval_s
        self._max_misses = max_misses
        self._on_models = on_models
        self._on_change = on_change
        self._chance = chance
        self._looked_at = 0.0
        self._listed_at = 0.0
        self._doubt = asyncio.Event()
        self._first = asyncio.Event()
        self.reachability = Reachability()
        self.signs = SignsOfLife()
        """When the upstream last sent part of an answer; written by the streams."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._doubt.clear()
            self._take(await self._look())
            await self._pause()

    async def first_look(self) -> None:
        """Until the upstream was looked at once. Raises BackendUnavailable if it was not there then."""
        await self._first.wait()
        if not self.reachability.up:
            raise BackendUnavailable(f"The upstream is not there: {self.reachability.reason}.")

    def doubt(self) -> None:
        """A request could not even be sent: look now, not at the next interval."""
        self._doubt.set()

    async def _look(self) -> Seen | Missed:
        now = self._looked_at = self._clock.now()
        if self.reachability.up and now - self._listed_at < MODELS_MAX_AGE_S:
            return await self._probe.look()
        # After an absence it may be another server with other models.
        listed = await self._probe.list_models()
        if isinstance(listed, Missed):
            return listed
        healthy = await self._probe.look()
        if isinstance(healthy, Seen):
            self._listed_at = now
            if not self._on_models(listed.models):
                return Missed("the upstream lists no models; name them in engines.openai.models")
        return healthy

    def _take(self, found: Seen | Missed) -> None:
        before = self.reachability
        if isinstance(found, Seen):
            self.reachability = before.seen()
        else:
            self.reachability = before.missed(found.reason, limit=self._max_misses)
        self._first.set()
        if (before.up, before.reason) != (self.reachability.up, self.reachability.reason):
            self._on_change()

    async def _pause(self) -> None:
        """Until the next look is due. What an answering upstream sends is as good as a look."""
        wait_s = self.reachability.next_look_s(self._interval_s)
        wait_s *= 1.0 + JITTER * (2.0 * self._chance() - 1.0)
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._doubt.wait()
            except TimeoutError:
                pass
            else:
                gap_s = self._looked_at + MIN_GAP_S - self._clock.now()
                if gap_s > 0:
                    await asyncio.sleep(gap_s)
                return
            if not self.reachability.up or self.reachability.misses:
                return
            wait_s = self.signs.at + self._interval_s - self._clock.now()
            if wait_s <= 0:
                return
