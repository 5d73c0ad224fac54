"""When an engine that is alive counts as stuck. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llm_runtime.core.errors import BackendError
from llm_runtime.core.lease import Lease
from llm_runtime.engines.watchdog import WorkLedger, watch
from tests.engines.virtual_time import run_virtual

LIMIT_S = 40.0


class Engine:
    """An engine whose counter a test moves; `answers` None: it does not answer."""

    def __init__(self) -> None:
        self.ledger = WorkLedger()
        self.counter: Callable[[], float | None] = lambda: 0.0
        self.hangs = False
        self.answers_after_s = 0.0
        self.breaks = False

    async def work_done(self) -> float | None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.breaks:
            raise BackendError("no")
        await asyncio.sleep(self.answers_after_s)
        return self.counter()


def now() -> float:
    return asyncio.get_running_loop().time()


def lease() -> Lease:
    return Lease("r", "e-0", 1, 0.0, lambda lease: None)


Script = Callable[[Engine], Coroutine[Any, Any, None]]
Verdict = tuple[float, str] | None


async def verdict(engine: Engine, script: Script, for_s: float) -> Verdict:
    """When and why the engine was called stuck, counted from the start; None if it was not."""
    found: list[tuple[float, str]] = []
    started_at = now()
    watching = asyncio.get_running_loop().create_task(
        watch(engine, LIMIT_S, lambda reason: found.append((now() - started_at, reason)), now)
    )
    scripting = asyncio.get_running_loop().create_task(script(engine))
    await asyncio.sleep(for_s)
    for task in (watching, scripting):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return found[0] if found else None


def judged(script: Script, for_s: float = 1000.0) -> Verdict:
    return run_virtual(verdict(Engine(), script, for_s))


def test_an_idle_engine_is_never_stuck() -> None:
    async def nothing(engine: Engine) -> None: ...

    assert judged(nothing) is None


def test_work_without_progress_and_no_answer() -> None:
    async def frozen(engine: Engine) -> None:
        engine.hangs = True
        engine.ledger.opened(lease(), 10, now())

    found = judged(frozen)
    assert found is not None
    assert found[0] == pytest.approx(LIMIT_S)
    assert "did not answer" in found[1]


def test_an_error_is_no_answer() -> None:
    async def broken(engine: Engine) -> None:
        engine.breaks = True
        engine.ledger.opened(lease(), 10, now())

    found = judged(broken)
    assert found is not None
    assert found[0] == pytest.approx(LIMIT_S)


def test_one_that_stops_answering_between_two_looks_gets_no_long_second_chance() -> None:
    async def falling_asleep(engine: Engine) -> None:
        engine.ledger.opened(lease(), 10, now())
        await asyncio.sleep(LIMIT_S * 0.9)
        engine.hangs = True

    found = judged(falling_asleep)
    assert found is not None
    assert found[0] == pytest.approx(LIMIT_S + 5.0)
    assert "stopped answering" in found[1]


def test_one_that_answers_late_but_within_its_time_is_no_frozen_one() -> None:
    async def slow(engine: Engine) -> None:
        engine.ledger.opened(lease(), 10, now())
        engine.answers_after_s = 4.5
        engine.counter = now

    assert judged(slow) is None


def test_after_a_pause_of_the_whole_machine_the_engine_is_asked_before_it_is_judged() -> None:
    async def paused(engine: Engine) -> None:
        engine.answers_after_s = 1.0
        engine.counter = now
        # Its work is as old as if the clock had jumped over the whole limit.
        engine.ledger.opened(lease(), 10, now() - 2 * LIMIT_S)

    assert judged(paused) is None


def test_f55_a_b_an_engine_that_answers_health_but_works_on_nothing() -> None:
    async def wedged(engine: Engine) -> None:
        engine.ledger.opened(lease(), 10, now())

    found = judged(wedged)
    assert found is not None
    assert found[0] == pytest.approx(LIMIT_S)
    assert "no progress" in found[1]


def test_tokens_are_progress() -> None:
    async def slow(engine: Engine) -> None:
        engine.ledger.opened(lease(), 10, now())
        while True:
            await asyncio.sleep(LIMIT_S * 0.9)
            engine.ledger.signs.at = now()

    assert judged(slow) is None


def test_a_moving_counter_is_progress() -> None:
    async def silent(engine: Engine) -> None:
        engine.ledger.opened(lease(), 10, now())
        engine.counter = now

    assert judged(silent) is None


def test_the_silence_counts_from_the_first_work_not_from_the_last_of_yesterday() -> None:
    async def later(engine: Engine) -> None:
        engine.hangs = True
        engine.ledger.signs.at = now()
        await asyncio.sleep(500)
        engine.ledger.opened(lease(), 10, now())

    found = judged(later)
    assert found is not None
    assert found[0] == pytest.approx(500 + LIMIT_S)


def test_work_that_ended_cannot_be_stuck() -> None:
    async def ended(engine: Engine) -> None:
        engine.hangs = True
        held = lease()
        engine.ledger.opened(held, 10, now())
        await asyncio.sleep(LIMIT_S / 2)
        held.free()

    assert judged(ended) is None


def test_a_long_prompt_is_given_three_times_its_predicted_prefill() -> None:
    async def long(engine: Engine) -> None:
        engine.hangs = True
        engine.ledger.opened(lease(), 10_000, now())

    found = judged(long)
    assert found is not None
    assert found[0] == pytest.approx(3 * 10_000 / 100)


def test_prompts_that_are_read_need_no_patience() -> None:
    async def decoding(engine: Engine) -> None:
        for _ in range(8):
            held = lease()
            engine.ledger.opened(held, 10_000, now())
            engine.ledger.first_token(held, now(), whole=False)
        engine.hangs = True

    found = judged(decoding)
    assert found is not None
    assert found[0] == pytest.approx(LIMIT_S)


def patience_after(read: Callable[[WorkLedger], None]) -> float:
    """For a prompt of 10,000 tokens; 300 s while nothing is known."""

    async def patience() -> float:
        ledger = WorkLedger()
        read(ledger)
        ledger.opened(lease(), 10_000, 0.0)
        return ledger.patience_s(1.0)

    return run_virtual(patience())


def test_the_prefill_rate_is_learnt() -> None:
    def one_after_another(ledger: WorkLedger) -> None:
        for second in range(50):
            held = lease()
            ledger.opened(held, 1000, float(second))
            ledger.first_token(held, second + 1.0, whole=False)
            held.free()

    assert patience_after(lambda ledger: None) == pytest.approx(300.0)
    assert patience_after(one_after_another) == pytest.approx(30.0, rel=0.01)


def test_prompts_read_side_by_side_do_not_make_the_engine_look_slow() -> None:
    def in_eights(ledger: WorkLedger) -> None:
        for second in range(50):
            held = [lease() for _ in range(8)]
            for each in held:
                ledger.opened(each, 125, float(second))
            for each in held:
                ledger.first_token(each, second + 1.0, whole=False)
                each.free()

    assert patience_after(in_eights) == pytest.approx(30.0, rel=0.5)  # the first of eight sees itself alone


def test_an_answer_in_one_piece_says_nothing_about_its_prompt() -> None:
    def whole(ledger: WorkLedger) -> None:
        held = lease()
        ledger.opened(held, 1000, 0.0)
        ledger.first_token(held, 100.0, whole=True)
        held.free()

    assert patience_after(whole) == pytest.approx(300.0)
