"""Engines that studies are made with. Rounded from measurements; the scenario `calibration-llama-cpp`
measures the embedded one anew.
"""

from __future__ import annotations

from llm_runtime.bench.sim.config import ContinuousModel
from llm_runtime.bench.sim.curve import line, through

EMBEDDED = ContinuousModel(
    num_slots=8,
    step_s=through([(0, 0.0), (1, 0.0074), (4, 0.0221), (8, 0.0364)]),
    prefill_s_per_token=0.00467,
    batch_tokens=16,
)
"""llama.cpp with a 135-million-parameter model on two cores: 135 tokens per second alone, 220 in eight."""

SERVER_GPU = ContinuousModel(
    num_slots=64, step_s=line(0.020, 0.00025), prefill_s_per_token=0.0001, batch_tokens=2048
)
"""A 7-billion-parameter model on one large GPU: 50 tokens per second alone, 1,790 in 64."""
