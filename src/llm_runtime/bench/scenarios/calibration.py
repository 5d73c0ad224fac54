"""The model of the embedded engine that policies are simulated with, and its error on other runs."""

from __future__ import annotations

from llm_runtime.bench.config import Target
from llm_runtime.bench.launch import launched
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.sim.calibrate import Effort, as_json, calibrate

NUM_SLOTS, BATCH_TOKENS, CONTEXT_TOKENS = 8, 16, 2048
FULL = Effort()
QUICK = Effort(prompts=(16, 96), repeats=1, sizes=(1, 4, 8), step_tokens=24, heldout_requests=16)
SETTINGS = {
    "native_backend_concurrency": NUM_SLOTS,
    "n_ctx": CONTEXT_TOKENS,
    "engines.llama_cpp.n_batch": BATCH_TOKENS,
}


async def measure(quick: bool) -> Result:
    async with launched(serve_command("llama.cpp", SETTINGS), {}, "/health/ready") as url:
        found = await calibrate(
            Target(url, ignore_eos=True),
            num_slots=NUM_SLOTS,
            batch_tokens=BATCH_TOKENS,
            effort=QUICK if quick else FULL,
        )
    model = found.model
    figures: dict[str, float | None] = {
        "prefill_tokens_per_s": 1 / model.prefill_s_per_token,
        "decode_tokens_per_s_1": 1 / model.step_s(1),
        f"decode_tokens_per_s_{NUM_SLOTS}": NUM_SLOTS / model.step_s(NUM_SLOTS),
        "alone_ms": 1e3 * found.alone_s,
    }
    for figure in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput"):
        errors = [abs(run[figure]) for run in found.errors.values()]
        figures[f"worst_{figure}_error"] = max(errors)
    return Result(figures, as_json(found))


SCENARIO = Scenario(
    name="calibration-llama-cpp",
    question="Does a model with a prefill rate and a step time by batch size, measured apart, foresee TTFT, "
    "TPOT, E2E and throughput of mixed loads on the embedded engine?",
    workload={"settings": SETTINGS, "full": FULL, "quick": QUICK},
    bars=(
        Bar("worst_output_throughput_error", "<=", 0.15, quick=False),
        Bar("worst_mean_e2el_ms_error", "<=", 0.20, quick=False),
        Bar("worst_mean_ttft_ms_error", "<=", 0.30, quick=False),
    ),
    run=measure,
)
