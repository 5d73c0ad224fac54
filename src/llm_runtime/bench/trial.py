"""The requests of a study sent to real servers: the embedded engine behind every arm, and by itself.

Each arm has a server of its own, of the same engine, threads and slots. All are started beforehand and
one is loaded at a time, in an order that turns with the seed. How fast the engine is today is measured
first: the time for one of the workload's requests when it is full, which instants are multiples of, and
what a request takes when it is empty, which objectives are multiples of.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import Target, TrafficClass
from llm_runtime.bench.engine_commands import MODEL, llama_cpp_command
from llm_runtime.bench.given import given_plan, play_on_time
from llm_runtime.bench.launch import launched
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.sim.config import ContinuousModel
from llm_runtime.bench.sim.job import Ask, Job, request_of
from llm_runtime.bench.sim.seeds import Figures
from llm_runtime.bench.sim.study import Arm, Engine, Study, over_seeds
from llm_runtime.bench.sim.unloaded import Unloaded
from llm_runtime.bench.workload import Session, Turn
from llm_runtime.core.errors import BackendError
from llm_runtime.scheduling.config import SchedulingConfig

NUM_ALONE = 7
LATE_LIMIT_S = 0.05
"""A crowd that comes at one instant takes the client some of it to send. It counts into every latency, and
is little beside waits of seconds."""
TOKENS_PER_WORD = 1.3
"""Of the builtin model's tokenizer and the harness's words."""
_QUEUED = re.compile(r"queue;dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Bench:
    """The embedded engine as it is served: the same for every arm."""

    num_slots: int = 8
    prefill_batch: int = 16
    num_threads: int = 1
    context_tokens: int = 1024


def command(arm: Arm, bench: Bench) -> tuple[str, str]:
    """The command line of an arm's server, and the path that tells when it is ready."""
    if arm.scheduling is None:
        line = llama_cpp_command(
            num_threads=bench.num_threads,
            num_slots=bench.num_slots,
            context_tokens=bench.context_tokens,
            num_batch=bench.prefill_batch,
        )
        return line, "/health"
    settings: dict[str, object] = {
        "n_threads": bench.num_threads,
        "native_backend_concurrency": bench.num_slots,
        "n_ctx": bench.context_tokens,
        "engines.llama_cpp.n_batch": bench.prefill_batch,
        "request_timeout_s": 600,
        **scheduling_settings(arm.scheduling),
    }
    return serve_command("llama.cpp", settings), "/health/ready"


def scheduling_settings(config: SchedulingConfig) -> dict[str, object]:
    """What differs from the defaults, by the names of settings."""
    default = SchedulingConfig()
    return {
        f"scheduling.{each.name}": value
        for each in fields(config)
        if (value := getattr(config, each.name)) != getattr(default, each.name)
    }


NUM_SEEDS = 3


async def confirmed(
    study: Study, model: ContinuousModel, size: float, bench: Bench, *, quick: bool
) -> dict[str, Any]:
    """As `tried` over a few seeds, with what the simulator says of the same requests beside it. quick: of
    half the size, and one seed."""
    seeds = range(1 if quick else NUM_SEEDS)
    size = size / 2 if quick else size
    body = await tried(study, seeds, size, bench)
    return {**body, "size": size, "simulated": await over_seeds(study, model, seeds, size)}


async def tried(study: Study, seeds: Sequence[int], size: float, bench: Bench) -> dict[str, Any]:
    """Every arm on every seed, as JSON; `found`: figures, by seed and arm.

    Raises BackendError for a failed request of a study in which none may fail, and when the client itself
    was late again and again.
    """
    async with AsyncExitStack() as stack:
        urls: dict[SchedulingConfig | None, str] = {}
        for arm in study.arms.values():
            if arm.scheduling not in urls:
                line, ready = command(arm, bench)
                urls[arm.scheduling] = await stack.enter_async_context(launched(line, {}, ready))
        for url in urls.values():
            await _play(url, _warm_up(bench))
        engine = await _measured(study, urls[SchedulingConfig()], size)
        for scheduling, url in urls.items():
            if scheduling not in (None, SchedulingConfig()):
                await _play(url, study.workload.together(size))  # what learns has something to learn from
        found: list[dict[str, Figures]] = []
        for number, seed in enumerate(seeds):
            drawn = study.asks(engine, seed, size)
            figures: dict[str, Figures] = {}
            for name in _turned(list(study.arms), number):
                arm = study.arms[name]
                jobs = await _play(urls[arm.scheduling], arm.asked(drawn), may_fail=study.may_fail)
                figures[name] = study.figures_of(jobs, engine.alone)
            found.append({name: figures[name] for name in study.arms})
    return {"engine": asdict(engine), "bench": asdict(bench), "seeds": list(seeds), "found": found}


async def _measured(study: Study, url: str, size: float) -> Engine:
    reference = Ask(0, 0.0, *study.workload.reference, study.workload.reference[1])
    alone = []
    for _ in range(NUM_ALONE):
        alone += await _play(url, [reference])
    together = await _play(url, study.workload.together(size))
    ended_s = max(job.finished_at or 0.0 for job in together)
    ttft_s = statistics.median((job.first_token_at or 0.0) - job.ask.at_s for job in alone)
    e2e_s = statistics.median((job.finished_at or 0.0) - job.ask.at_s for job in alone)
    tpot_s = (e2e_s - ttft_s) / max(1, study.workload.reference[1] - 1)
    return Engine(ended_s / len(together), Unloaded(ttft_s, e2e_s, tpot_s))


def _warm_up(bench: Bench) -> list[Ask]:
    """Opens what is opened once, in every slot."""
    return [Ask(number, 0.0, 8, 4, 4) for number in range(bench.num_slots)]


def _turned(names: Sequence[str], number: int) -> list[str]:
    start = number % len(names)
    return [*names[start:], *names[:start]]


# ---- as the harness sends and keeps them


async def _play(url: str, asks: Sequence[Ask], *, may_fail: bool = False) -> list[Job]:
    """In the order of the asks. Raises BackendError for a failed request, if none may fail, or a client that
    was late."""
    given = sessions(asks)
    plan = given_plan(Target(url, model=MODEL, ignore_eos=True), given, drain_timeout_s=300.0)
    plan = replace(plan, tokens_per_word=TOKENS_PER_WORD)
    records = await play_on_time(plan, given, tries=2, limit_s=LATE_LIMIT_S)
    failed = [record for record in records if record.status is not Status.COMPLETED]
    if (failed and not may_fail) or len(records) != len(asks):
        raise BackendError(f"{len(failed)} requests failed: {failed[0].message if failed else 'not sent'}")
    return [job_of(ask, record) for ask, record in zip(asks, records, strict=True)]


def sessions(asks: Sequence[Ask]) -> list[Session]:
    """One request each, numbered by their places."""
    return [
        Session(number, _traffic(ask), (Turn(ask.prompt_tokens, ask.output_tokens),), ask.at_s)
        for number, ask in enumerate(asks)
    ]


def _traffic(ask: Ask) -> TrafficClass:
    patience_s = ask.limits.request_s
    return TrafficClass(ask.traffic, priority=ask.priority, tenant=ask.tenant, patience_s=patience_s)


def job_of(ask: Ask, record: RequestRecord) -> Job:
    """What became of it, in seconds since the load's start. Where the server does not tell how long a
    request was queued, it counts as dispatched with its first token. An answer whose few tokens are no whole
    character shows none: then its end is when its client saw that they were there."""
    prompt_tokens = record.prompt_tokens or ask.prompt_tokens
    job = Job(replace(ask, prompt_tokens=prompt_tokens), request_of(ask, record.scheduled_at))
    job.queued_at = record.scheduled_at
    first_seen_at = record.first_token_at
    if first_seen_at is None and record.status is Status.COMPLETED and record.completion_tokens:
        first_seen_at = record.finished_at
    job.first_token_at = first_seen_at
    job.last_token_at = record.last_token_at
    job.finished_at = record.finished_at
    tokens = record.completion_tokens
    job.num_generated = record.num_token_events if tokens is None else tokens
    job.cached_tokens = record.cached_tokens or 0
    job.dispatched_at = first_seen_at
    queued = _QUEUED.search(record.server_timing or "")
    if queued is not None:
        job.dispatched_at = record.scheduled_at + float(queued[1]) / 1e3
    if metrics.e2e_s(record) is None:
        job.error = BackendError(record.message or "It failed.")
    return job
