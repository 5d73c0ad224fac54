"""How many requests vLLM should work on at once: `max_num_seqs` from a few to as many as there are clients.

More sequences share each step's reading of the weights, until arithmetic or memory takes over. Always the
same clients: those that the engine does not take wait in the runtime's queue, and their wait is in their
TTFT. The knee is the smallest value that gives nine tenths of the best throughput of all values
(`bench.knee`).
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_runtime.bench.knee import ENOUGH, knee
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.vllm_host import Engine, Host, command
from llm_runtime.bench.vllm_load import LATENCIES, ClosedLoad, Loaded, loaded, with_each

SHOWN = ("output_throughput", *LATENCIES, "preemptions", "failed")
NAME = "vllm-max-num-seqs"


@dataclass(frozen=True, slots=True)
class Size:
    """values: in the order in which they are tried, an odd one, so that a machine which becomes slower or
    faster meanwhile does not look like a slope. cache_bytes: room for all clients; None: what vLLM takes."""

    values: tuple[int, ...]
    load: ClosedLoad
    context_tokens: int
    cache_bytes: int | None = None

    def engines(self) -> dict[str, Engine]:
        return {str(value): Engine(value, self.context_tokens, self.cache_bytes) for value in self.values}


CPU = Size((16, 128, 8, 64, 32), ClosedLoad(128, 32, 16, rounds=3, requests=272), 256, 256 << 20)
CPU_QUICK = Size((8, 1), ClosedLoad(8, 32, 8, rounds=1, requests=24), 256, 256 << 20)
GPU = Size((64, 8, 512, 128, 16, 256, 32), ClosedLoad(512, 256, 128, rounds=3, requests=1024), 2048)
GPU_QUICK = Size((64, 8), ClosedLoad(64, 256, 32, rounds=1, requests=128), 2048)


def on(host: Host) -> Scenario:
    """The scenario, for that host."""
    full, quick = (GPU, GPU_QUICK) if host.gpu else (CPU, CPU_QUICK)

    async def measure(is_quick: bool) -> Result:
        size = quick if is_quick else full
        found, not_run = await with_each(host, size.engines(), lambda served: loaded(served, size.load))
        return told({int(value): each for value, each in found.items()}, not_run)

    return Scenario(
        name=f"{host.mark}{NAME}",
        question="How many sequences at once does vLLM need for its throughput, and what do fewer or more "
        "cost those who wait?",
        workload={"host": host.facts(), "full": full, "quick": quick, "enough": ENOUGH},
        bars=(Bar("failed", "<=", 0.0), Bar("not_run", "<=", 0.0)),
        run=measure,
    )


def commands(host: Host) -> list[str]:
    """What a full run starts, one after the other."""
    size = GPU if host.gpu else CPU
    return [command(host, engine) for engine in size.engines().values()]


def told(found: dict[int, Loaded], not_run: dict[str, str]) -> Result:
    """The figures of every value that was run. The knee is None where fewer than two were, and where only the
    greatest value gives enough. The knees of the rounds, each by itself, show how sure it is."""
    figures: dict[str, float | None] = {}
    for value, each in sorted(found.items()):
        figures |= {f"{name}_at_{value}": each.figures[name] for name in SHOWN}
    if len(found) > 1:
        figures["knee"] = knee(
            {value: each.figures["output_throughput"] or 0.0 for value, each in found.items()}
        )
        num_rounds = min(len(each.rates) for each in found.values())
        knees = [
            knee({value: each.rates[number] for value, each in found.items()}) for number in range(num_rounds)
        ]
        for number, one in enumerate(knees):
            figures[f"knee_of_round_{number}"] = one
    figures["failed"] = sum(each.figures["failed"] or 0.0 for each in found.values())
    figures["not_run"] = len(not_run)
    details = {
        "not_run": not_run,
        "vllm": {str(value): each.version for value, each in found.items()},
        "rounds": {str(value): each.rounds for value, each in found.items()},
    }
    return Result(figures, details)


SCENARIO = on(Host())
