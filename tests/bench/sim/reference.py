"""A continuous engine played step by step and token by token, as plainly as it can be written."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_runtime.bench.sim.config import ContinuousModel

TINY = 1e-9


@dataclass
class Wanted:
    """A sequence: when it comes, what it needs, when (if ever) it is cancelled; and what it got."""

    name: int
    at: float
    prompt: int
    output: int
    cancel_at: float = float("inf")
    to_compute: int = 0
    token_at: list[float] = field(default_factory=list)
    gone_at: float | None = None


def play(model: ContinuousModel, wanted: list[Wanted], slowness: list[tuple[float, float]]) -> None:
    """Fills `token_at` and `gone_at`. slowness: (from instant, factor), ascending."""
    coming = sorted(wanted, key=lambda w: (w.at, w.name))
    working: list[Wanted] = []
    now = 0.0
    while coming or working:
        working = [w for w in working if not _cancelled(w, now)]
        while coming and coming[0].at <= now + TINY:
            came = coming.pop(0)
            came.to_compute = came.prompt
            if not _cancelled(came, now):
                working.append(came)
        if not working:
            if not coming:
                return
            now = coming[0].at
            continue
        now = _step(model, working, now, _factor(slowness, now))
        working = [w for w in working if w.gone_at is None]


def _step(model: ContinuousModel, working: list[Wanted], now: float, factor: float) -> float:
    decoding = [w for w in working if w.to_compute == 0]
    budget = max(1, model.batch_tokens - len(decoding))
    computed = []
    for w in working:
        if w.to_compute and budget:
            tokens = min(budget, w.to_compute)
            budget -= tokens
            computed.append((w, tokens))
    prompt_tokens = sum(tokens for _, tokens in computed)
    now += factor * (model.step_s(len(decoding)) + model.prefill_s_per_token * prompt_tokens)
    for w, tokens in computed:
        w.to_compute -= tokens
    for w in (*decoding, *(w for w, _ in computed if w.to_compute == 0)):
        w.token_at.append(now)
        if len(w.token_at) == w.output:
            w.gone_at = now
    return now


def _cancelled(w: Wanted, now: float) -> bool:
    if w.gone_at is None and w.cancel_at <= now + TINY:
        w.gone_at = now
        return True
    return False


def _factor(slowness: list[tuple[float, float]], now: float) -> float:
    return next((factor for at, factor in reversed(slowness) if at <= now + TINY), 1.0)
