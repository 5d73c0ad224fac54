"""GPU telemetry that cannot hurt: read off the loop, at intervals, and served from the last reading.

NVML is asked first, the `nvidia-smi` program where NVML is not there. A machine without either, a
driver that hangs and a program that prints nonsense all end in a reading that says unavailable and
why; none of them delays a request or the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from llm_runtime.telemetry.gpu_readers import GpuReader, NvidiaSmiReader, NvmlReader
from llm_runtime.telemetry.gpu_reading import GpuReading, GpuUnavailable, unavailable

DRIVER_TIMEOUT_S = 10.0
MAX_RETRY_INTERVAL_S = 60.0


class NvidiaSmiSampler:
    """Owned by the runtime, which supervises `run`. `latest` may be read at any time from the loop.

    interval_s: seconds between two readings; 0: GPU telemetry is off. A failure is tried again more
    and more rarely, a minute apart at last. on_reading is told of every reading, on the loop.
    """

    def __init__(
        self,
        interval_s: float,
        readers: Sequence[GpuReader] | None = None,
        *,
        driver_timeout_s: float = DRIVER_TIMEOUT_S,
        on_reading: Callable[[GpuReading], None] | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._readers = (NvmlReader(), NvidiaSmiReader()) if readers is None else tuple(readers)
        self._driver_timeout_s = driver_timeout_s
        self._on_reading = on_reading
        self.latest = unavailable("not read yet" if interval_s > 0 else "GPU telemetry is switched off")

    @property
    def enabled(self) -> bool:
        return self._interval_s > 0

    def snapshot(self) -> dict[str, Any]:
        """The last reading as the `gpu` object of the JSON metrics."""
        return self.latest.as_dict()

    def read(self) -> GpuReading:
        """Asks the readers in turn. Blocks; never raises GpuUnavailable."""
        reasons: list[str] = []
        for reader in self._readers:
            try:
                return GpuReading("available", reader.source, None, reader.read())
            except GpuUnavailable as error:
                reasons.append(str(error))
        return unavailable("; ".join(reasons))

    async def run(self) -> None:
        """Reads until cancelled, then stops what a reading may have started."""
        retry_s = self._interval_s
        try:
            while self.enabled:
                await self._sample()
                retry_s = (
                    self._interval_s if self.latest.available else min(2 * retry_s, MAX_RETRY_INTERVAL_S)
                )
                await asyncio.sleep(max(retry_s, self._interval_s))
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            for reader in self._readers:
                reader.close()
            raise

    def pause_after(self, pause_s: float) -> float:
        """Seconds to the next reading, when the pause before the last one was `pause_s`."""
        if self.latest.available:
            return self._interval_s
        return max(min(2 * pause_s, MAX_RETRY_INTERVAL_S), self._interval_s)

    async def _sample(self) -> None:
        reading = _in_daemon_thread(self.read)
        await asyncio.wait((reading,), timeout=self._driver_timeout_s)
        if not reading.done():
            self._take(unavailable("the GPU driver does not answer"))
            await asyncio.wait((reading,))
        self._take(reading.result())

    def _take(self, reading: GpuReading) -> None:
        self.latest = reading
        if self._on_reading is not None:
            self._on_reading(reading)


def _in_daemon_thread(work: Callable[[], GpuReading]) -> asyncio.Future[GpuReading]:
    """A thread of the loop's executor that hangs in a driver would keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[GpuReading] = loop.create_future()

    def settle(result: GpuReading | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def body() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        # The loop may have been closed meanwhile: then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, name="gpu-reading", daemon=True).start()
    return future
