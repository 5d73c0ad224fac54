"""Takes what it can of a tenant's limits in Redis: `taker.py URL REQUESTS_PER_MINUTE PLACES LEASE_S`.

It says `ready` and waits for a line. Told a number, it tries as fast as it can for so many seconds and prints
how often it was let in. Told `hold`, it takes one place, says `held` and keeps it until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import time

import structlog

from llm_runtime.admission.config import RedisConfig, TenantLimits
from llm_runtime.admission.redis_limits import RedisLimits
from llm_runtime.core.errors import RateLimited


async def main(url: str, requests_per_minute: int, places: int, lease_s: float) -> None:
    limiter = RedisLimits(RedisConfig(url=url, when_gone="closed", lease_s=lease_s, timeout_ms=5000))
    limits = TenantLimits(
        requests_per_minute=requests_per_minute or None, max_concurrent_requests=places or None
    )
    task = asyncio.create_task(limiter.run())
    while not limiter.shared:  # noqa: ASYNC110
        await asyncio.sleep(0)
    say("ready")
    told = (await asyncio.to_thread(sys.stdin.readline)).strip()
    if told == "hold":
        await limiter.reserve("a", limits, 1, time.monotonic())
        say("held")
        await asyncio.Event().wait()
    ends_at = time.monotonic() + float(told)
    num_let_in = 0
    while time.monotonic() < ends_at:
        try:
            hold = await limiter.reserve("a", limits, 1, time.monotonic())
        except RateLimited:
            continue
        num_let_in += 1
        limiter.settle(hold, limits, 1, time.monotonic())
    say(str(num_let_in))
    task.cancel()


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
