"""What is simulated: engines, replicas and what befalls them, as frozen values with their defaults.

These values go into the result file as they are, so a result explains itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_runtime.bench.sim.curve import Curve, constant, line

_STEPS, _MOCK_STEPS = line(0.0075, 0.004), constant(0.010)


@dataclass(frozen=True, slots=True)
class ContinuousModel:
    """An engine that takes a sequence whenever a slot is free and works in steps, as llama.cpp and vLLM do.

    Each step gives every decoding sequence one token and computes prompt tokens with what is left of
    `batch_tokens`, prompts in the order of their coming. It lasts
    `step_s(decoding sequences) + prefill_s_per_token * prompt tokens`. A sequence that comes during a
    step joins at its end; a prompt's last step brings its first token.

    cache_tokens: what the prefix cache holds, 0 for none; cache_block_tokens: its granularity for
    prompts whose blocks are not given by a trace.
    """

    num_slots: int = 8
    step_s: Curve = _STEPS
    prefill_s_per_token: float = 0.0047
    batch_tokens: int = 16
    cache_tokens: int = 0
    cache_block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class StaticModel:
    """An engine that runs one batch from start to end, as the mock does: a prefill once, then steps that
    all members share. The n-th token comes `prefill_s + n * step_s(batch)` after the start.

    prefill_s_per_token: beside that, of the longest prompt of the batch, to which all are padded.
    """

    num_slots: int = 8
    step_s: Curve = _MOCK_STEPS
    prefill_s: float = 0.025
    prefill_s_per_token: float = 0.0


EngineModel = ContinuousModel | StaticModel


@dataclass(frozen=True, slots=True)
class Change:
    """From at_s on everything takes `slowness` times as long as the model says. A step (of a static
    engine: a batch) that has begun is not changed any more."""

    at_s: float
    slowness: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """Between from_s and to_s the replica is of no use.

    crash: it loses what it works on, and is not ready until to_s. refuse: it looks ready, and refuses
    each request after delay_s without computing anything, as an upstream that answers 503 does.
    """

    from_s: float
    to_s: float
    kind: Literal["crash", "refuse"] = "crash"
    delay_s: float = 0.001


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """in_flight: slots that the gateway may take there; None: as many as the engine has. What is beyond
    the engine's own waits in the engine's queue, first come, first served; a static engine has none.
    """

    model: EngineModel = ContinuousModel()
    changes: tuple[Change, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    in_flight: int | None = None

    @property
    def num_slots(self) -> int:
        """As the gateway sees them."""
        return self.model.num_slots if self.in_flight is None else self.in_flight


@dataclass(frozen=True, slots=True)
class SimConfig:
    """replicas: the pool. network_s: from the client to our queue, and again from the engine to the
    client: half a round trip. keep_itls: whether records hold the gap before every token, which costs
    memory by the token. horizon_s: where the simulation is cut off; what is in flight then has failed.
    """

    replicas: tuple[ReplicaConfig, ...] = (ReplicaConfig(),)
    network_s: float = 0.0
    keep_itls: bool = False
    horizon_s: float = float("inf")


def fleet(num_replicas: int, model: EngineModel) -> tuple[ReplicaConfig, ...]:
    return (ReplicaConfig(model),) * num_replicas
