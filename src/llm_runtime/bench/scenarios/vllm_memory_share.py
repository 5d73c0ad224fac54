"""What too small a KV cache costs: vLLM preempts, that is, throws a request's state out and computes it anew.

On a GPU the knob is the share of its memory that vLLM takes, weights included. On processors it is the size
of the cache itself: there shares are of the whole machine's memory, far more than a small model can fill.
Always the same clients, all of which the engine may take at once, so nothing but the cache is in their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.vllm_host import Cache, Engine, Host, Served, command
from llm_runtime.bench.vllm_load import LATENCIES, ClosedLoad, Loaded, loaded, with_each

SHOWN = ("output_throughput", *LATENCIES, "preemptions", "cache_use_max", "gpu_utilisation", "failed")
NAME = "vllm-memory-share"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """Descending: shares of a GPU's memory, or caches in MiB."""

    load: ClosedLoad
    context_tokens: int
    shares: tuple[float, ...] = ()
    caches_mib: tuple[int, ...] = ()

    def engines(self) -> dict[str, Engine]:
        """By the word that their figures bear."""
        slots, context = self.load.clients, self.context_tokens
        by_share = {
            f"{share:.0%}".replace("%", "_percent"): Engine(slots, context, memory_share=share)
            for share in self.shares
        }
        by_size = {f"{mib}_mib": Engine(slots, context, cache_bytes=mib * MIB) for mib in self.caches_mib}
        return by_share | by_size


# A token of the builtin model takes 22.5 KiB: sixteen requests of about 150 tokens fill 55 MiB.
CPU = Size(ClosedLoad(16, 48, 64, rounds=3, requests=68), 256, caches_mib=(64, 32, 16, 8))
CPU_QUICK = Size(ClosedLoad(16, 48, 64, rounds=1, requests=24), 256, caches_mib=(64, 8))
GPU = Size(ClosedLoad(256, 1024, 512, rounds=3, requests=512), 2048, shares=(0.9, 0.7, 0.5, 0.3, 0.2, 0.1))
GPU_QUICK = Size(ClosedLoad(64, 512, 128, rounds=1, requests=128), 2048, shares=(0.9, 0.3))


def on(host: Host) -> Scenario:
    """The scenario, for that host. What happens on processors is known, so it is held to it; how many
    requests a GPU's memory holds depends on GPU and model, and a share below the weights cannot be run."""
    full, quick = (GPU, GPU_QUICK) if host.gpu else (CPU, CPU_QUICK)

    async def measure(is_quick: bool) -> Result:
        size = quick if is_quick else full

        async def use(served: Served) -> tuple[Loaded, Cache]:
            return await loaded(served, size.load), await served.cache()

        found, not_run = await with_each(host, size.engines(), use)
        return told(found, not_run)

    known = (
        Bar("preemptions_with_most_cache", "<=", 0.0),
        Bar("preemptions_with_least_cache", ">=", 1.0),
        Bar("not_run", "<=", 0.0),
    )
    return Scenario(
        name=f"{host.mark}{NAME}",
        question="What do throughput and latencies lose, and how often is a request preempted, as vLLM's KV "
        "cache becomes too small for those it works on?",
        workload={"host": host.facts(), "full": full, "quick": quick},
        bars=(Bar("failed", "<=", 0.0), *(() if host.gpu else known)),
        run=measure,
    )


def commands(host: Host) -> list[str]:
    """What a full run starts, one after the other."""
    size = GPU if host.gpu else CPU
    return [command(host, engine) for engine in size.engines().values()]


def told(found: dict[str, tuple[Loaded, Cache]], not_run: dict[str, str]) -> Result:
    """found: descending by memory. preemptions_with_most_cache, _with_least_cache: of the first and the last
    cache that was run; None where fewer than two were."""
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {"not_run": not_run, "vllm": {}, "rounds": {}}
    for name, (each, cache) in found.items():
        figures |= {f"{figure}_at_{name}": each.figures[figure] for figure in SHOWN}
        figures[f"cache_tokens_at_{name}"] = cache.num_tokens
        details["vllm"][name] = each.version
        details["rounds"][name] = each.rounds
    if len(found) > 1:
        most, *_, least = (each.figures for each, _ in found.values())
        figures["preemptions_with_most_cache"], figures["preemptions_with_least_cache"] = (
            most["preemptions"],
            least["preemptions"],
        )
        rate = most["output_throughput"]
        figures["throughput_least_over_most_cache"] = (
            (least["output_throughput"] or 0.0) / rate if rate else None
        )
    figures["failed"] = sum(each.figures["failed"] or 0.0 for each, _ in found.values())
    figures["not_run"] = len(not_run)
    return Result(figures, details)


SCENARIO = on(Host())
