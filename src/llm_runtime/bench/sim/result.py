"""What a simulation found: jobs, and from them the same records and figures as of a real run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llm_runtime.bench import errors, metrics, stats
from llm_runtime.bench.config import Slo
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.sim.config import SimConfig
from llm_runtime.bench.sim.job import Job
from llm_runtime.bench.sim.replica import SimReplica
from llm_runtime.bench.summary import finite, latency_keys, spread
from llm_runtime.core.errors import ClientGone
from llm_runtime.web.errors import row_of

SCHEMA = "llm-runtime-sim/1"
HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Shares of the simulated time: of the replicas in which they worked, of the slots in which they
    were taken."""

    busy: float
    slots: float


class SimResult:
    """ended_at: the last instant, in seconds since the load's start."""

    def __init__(
        self, config: SimConfig, jobs: Sequence[Job], replicas: Sequence[SimReplica], ended_at: float
    ) -> None:
        self.config = config
        self.jobs = jobs
        self.ended_at = ended_at
        self._replicas = {replica.id: replica for replica in replicas}

    @cached_property
    def records(self) -> list[RequestRecord]:
        """As the load harness would have written them, by number. Latencies count from the instant a
        request was due; the way to the server and back is in them."""
        return [self._record(job) for job in sorted(self.jobs, key=lambda job: job.ask.number)]

    @property
    def utilisation(self) -> Utilisation:
        replicas = self._replicas.values()
        num_slots = sum(replica.engine_slots for replica in replicas)
        span_s = max(self.ended_at, 1e-12)
        return Utilisation(
            sum(replica.engine.busy_s for replica in replicas) / (len(replicas) * span_s),
            sum(replica.engine.slot_s for replica in replicas) / (num_slots * span_s),
        )

    @property
    def completed(self) -> list[Job]:
        return [job for job in self.jobs if job.error is None]

    def measured(self, traffic: str | None = None) -> list[Job]:
        """Jobs of the measured window, of one class or of all."""
        return [
            job for job in self.jobs if job.ask.measured and (traffic is None or job.ask.traffic == traffic)
        ]

    def queue_waits_s(self, traffic: str | None = None) -> list[float]:
        """Of those that were dispatched."""
        return [wait for job in self.measured(traffic) if (wait := job.queue_wait_s) is not None]

    def makespan_s(self, traffic: str | None = None) -> float:
        """From the first arrival of a class to its last end; 0 without requests."""
        jobs = self.measured(traffic)
        if not jobs:
            return 0.0
        ends = [job.finished_at for job in jobs if job.finished_at is not None]
        return max(ends) - min(job.ask.at_s for job in jobs)

    def summary(self, slos: Mapping[str, Slo] | None = None, seed: int = 0) -> dict[str, Any]:
        """Of all measured requests and, where there are several, of each class. slos: by class; a
        class without objectives has no goodput."""
        names = sorted({job.ask.traffic for job in self.jobs})
        records = metrics.measured(self.records)
        utilisation = self.utilisation
        body: dict[str, Any] = finite(
            {
                "schema": SCHEMA,
                "ended_at_s": self.ended_at,
                "utilisation": {"busy": utilisation.busy, "slots": utilisation.slots},
                **self._figures(records, None, Slo(), seed),
                "goodput_share": goodput_share(records, slos or {}),
                "classes": {
                    name: self._figures(
                        [record for record in records if record.traffic == name],
                        name,
                        (slos or {}).get(name, Slo()),
                        seed,
                    )
                    for name in names
                },
            }
        )
        return body

    def _figures(
        self, records: Sequence[RequestRecord], traffic: str | None, slo: Slo, seed: int
    ) -> dict[str, Any]:
        rates = metrics.rates(records, slo)
        return {
            "num_prompts": rates.num_requests,
            "completed": rates.num_completed,
            "failed": rates.num_failed,
            "errors": metrics.counted(records, lambda record: record.code),
            "makespan_s": self.makespan_s(traffic),
            "request_throughput": rates.per_second(rates.num_completed),
            "output_throughput": rates.per_second(rates.output_tokens),
            "total_input_tokens": rates.input_tokens,
            "total_output_tokens": rates.output_tokens,
            "cached_input_tokens": sum(record.cached_tokens or 0 for record in records),
            "goodput_share": rates.goodput_share,
            "queue_wait": spread(self.queue_waits_s(traffic)),
            **latency_keys(records, seed),
            "percentile_rule": stats.RULE,
        }

    def _record(self, job: Job) -> RequestRecord:
        ask, network_s = job.ask, self.config.network_s
        status, error, code = Status.COMPLETED, None, None
        http_status: int | None = 200
        if job.error is not None:
            status, code = Status.FAILED, job.error.reason
            error, http_status = _failure(job)
        tokens = job.num_generated * ask.num_slots if status is Status.COMPLETED else None
        first_at = _later(job.first_token_at, network_s)
        return RequestRecord(
            number=ask.number,
            session=ask.session,
            turn=ask.turn,
            traffic=ask.traffic,
            scheduled_at=ask.at_s,
            released_at=ask.at_s,
            started_at=ask.at_s,
            sent_at=ask.at_s,
            first_byte_at=first_at,
            first_token_at=first_at,
            last_token_at=_later(job.last_token_at, network_s),
            finished_at=_later(job.finished_at, network_s),
            measured=ask.measured,
            status=status,
            http_status=http_status,
            error=error,
            code=code,
            message=job.error.message if job.error is not None else None,
            retry_after_s=job.error.retry_after_s if job.error is not None else None,
            finish_reason="length" if status is Status.COMPLETED else None,
            prompt_tokens=ask.prompt_tokens if status is Status.COMPLETED else None,
            completion_tokens=tokens,
            cached_tokens=job.cached_tokens if status is Status.COMPLETED else None,
            num_token_events=job.num_generated,
            itls_s=self._gaps(job),
            priority=ask.priority,
            tenant=ask.tenant,
            max_tokens=ask.max_tokens,
            intended_tokens=ask.prompt_tokens,
            request_id=job.request.id,
        )

    def _gaps(self, job: Job) -> tuple[float, ...]:
        """Between tokens; without a log of steps a single gap, from the first token to the last."""
        if job.first_token_at is None or job.last_token_at is None or job.num_generated < 2:
            return ()
        assert job.replica is not None
        log = self._replicas[job.replica].engine.log
        if log is None or job.phases is None:
            return (job.last_token_at - job.first_token_at,)
        return tuple(log.gaps(*job.phases))


def goodput_share(records: Iterable[RequestRecord], slos: Mapping[str, Slo]) -> float | None:
    """Of all requests whose class has objectives, those that met them; None if there are none."""
    judged = [metrics.is_good(r, slos[r.traffic]) for r in records if slos.get(r.traffic)]
    return sum(judged) / len(judged) if judged else None


def _failure(job: Job) -> tuple[str, int | None]:
    """As the client would have counted it."""
    assert job.error is not None
    if isinstance(job.error, ClientGone):
        return errors.TIMEOUT, None
    if job.error.reason == HORIZON:
        return errors.DRAIN_TIMEOUT, None
    if job.first_token_at is not None:
        return errors.ERROR_EVENT, 200
    status = row_of(job.error).status
    return f"http_{status}", status


def _later(at: float | None, by_s: float) -> float | None:
    return None if at is None else at + by_s
