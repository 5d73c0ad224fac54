"""GPU: load, memory, power and health by NVIDIA's DCGM exporter, and what the server reads by itself."""

from __future__ import annotations

from dashboards.expr import increase, rate, series, total
from dashboards.parts import Dashboard, Panel, Query, Row, Variable

GPU = 'gpu=~"$gpu"'
NAME = "{{instance}} {{gpu}}"


def _gauge(metric: str, legend: str = NAME, scale: str = "") -> Query:
    return Query(series(metric, GPU) + scale, legend)


LOAD = Row(
    "Load",
    (
        Panel(
            "Utilisation",
            "Share of time in which any kernel ran. 100 % does not mean that the GPU is full: see the "
            "tensor cores.",
            "percent",
            (_gauge("DCGM_FI_DEV_GPU_UTIL"),),
            maximum=100,
        ),
        Panel(
            "Tensor cores active",
            "Share of cycles in which the tensor pipe worked: prefill drives it up, decode hardly.",
            "percentunit",
            (_gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),),
            maximum=1,
        ),
        Panel(
            "Memory interface active",
            "Share of cycles in which device memory was read or written: decode lives here.",
            "percentunit",
            (_gauge("DCGM_FI_PROF_DRAM_ACTIVE"),),
            maximum=1,
        ),
        Panel(
            "Graphics engine active",
            "Share of time in which the engine had work.",
            "percentunit",
            (_gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),),
            maximum=1,
        ),
        Panel(
            "Memory",
            "vLLM takes its share at start and keeps it: how full the KV cache is stands on the engine page.",
            "mbytes",
            (
                _gauge("DCGM_FI_DEV_FB_USED", f"{NAME} used"),
                _gauge("DCGM_FI_DEV_FB_FREE", f"{NAME} free"),
            ),
        ),
        Panel(
            "Clocks",
            "Of the multiprocessors and of the memory. A fall under load is throttling.",
            "hertz",
            (
                _gauge("DCGM_FI_DEV_SM_CLOCK", f"{NAME} SM", " * 1e6"),
                _gauge("DCGM_FI_DEV_MEM_CLOCK", f"{NAME} memory", " * 1e6"),
            ),
        ),
    ),
)

POWER = Row(
    "Power and heat",
    (
        Panel("Power", "Drawn by the board.", "watt", (_gauge("DCGM_FI_DEV_POWER_USAGE"),)),
        Panel(
            "Energy per token",
            "Energy of the chosen GPUs by the tokens that the chosen servers generated.",
            "joule",
            (
                Query(
                    f"{rate('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION', where=GPU)} / 1e3 "
                    f"/ ({rate('llm_runtime_completion_tokens_total')} > 0)",
                    "per generated token",
                ),
            ),
        ),
        Panel(
            "Temperature",
            "Of the chip and of the memory.",
            "celsius",
            (
                _gauge("DCGM_FI_DEV_GPU_TEMP", f"{NAME} chip"),
                _gauge("DCGM_FI_DEV_MEMORY_TEMP", f"{NAME} memory"),
            ),
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        Panel(
            "Last XID",
            "Number of the last error that the driver reported, 0 for none. It stays until the GPU is reset. "
            "48, 63, 64, 74, 79, 92, 94, 95, 119 and 120 are the hardware's.",
            "none",
            (_gauge("DCGM_FI_DEV_XID_ERRORS", f"{NAME} {{{{err_msg}}}}"),),
        ),
        Panel(
            "ECC errors",
            "New ones. Single-bit errors were corrected; a double-bit error ended what ran.",
            "short",
            (
                Query(
                    increase("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", ("instance", "gpu"), GPU), f"{NAME} single-bit"
                ),
                Query(
                    increase("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", ("instance", "gpu"), GPU), f"{NAME} double-bit"
                ),
            ),
        ),
        Panel(
            "Remapped rows",
            "Memory rows replaced by spare ones, and whether a replacement failed: then the board has to go.",
            "short",
            (
                Query(
                    total("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", ("instance", "gpu"), GPU, op="max"),
                    f"{NAME} uncorrectable",
                ),
                Query(
                    total("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", ("instance", "gpu"), GPU, op="max"),
                    f"{NAME} correctable",
                ),
                _gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", f"{NAME} failed"),
            ),
        ),
        Panel(
            "Throttled by heat or power",
            "Share of time in which the clocks were held down.",
            "percentunit",
            (
                Query(
                    rate("DCGM_FI_DEV_THERMAL_VIOLATION", ("instance", "gpu"), GPU) + " / 1e9",
                    f"{NAME} heat",
                ),
                Query(
                    rate("DCGM_FI_DEV_POWER_VIOLATION", ("instance", "gpu"), GPU) + " / 1e9",
                    f"{NAME} power",
                ),
            ),
        ),
        Panel(
            "PCIe",
            "Bytes per second to and from the host, protocol included.",
            "Bps",
            (
                _gauge("DCGM_FI_PROF_PCIE_TX_BYTES", f"{NAME} sent"),
                _gauge("DCGM_FI_PROF_PCIE_RX_BYTES", f"{NAME} received"),
            ),
        ),
        Panel(
            "PCIe replays",
            "Transfers that had to be repeated: a bad slot, riser or board.",
            "short",
            (Query(increase("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", ("instance", "gpu"), GPU), NAME),),
        ),
    ),
)

OWN = Row(
    "As the server itself reads it, without DCGM",
    (
        Panel(
            "Utilisation",
            "By NVML or nvidia-smi, on the server's own machine.",
            "percentunit",
            (_gauge("llm_runtime_gpu_utilization_ratio"),),
            maximum=1,
        ),
        Panel(
            "Memory",
            "By NVML or nvidia-smi, on the server's own machine.",
            "bytes",
            (
                _gauge("llm_runtime_gpu_memory_used_bytes", f"{NAME} used"),
                _gauge("llm_runtime_gpu_memory_size_bytes", f"{NAME} installed"),
            ),
        ),
        Panel(
            "Temperature",
            "By NVML or nvidia-smi, on the server's own machine.",
            "celsius",
            (_gauge("llm_runtime_gpu_temperature_celsius"),),
        ),
        Panel(
            "Power",
            "By NVML or nvidia-smi, on the server's own machine.",
            "watt",
            (_gauge("llm_runtime_gpu_power_watts"),),
        ),
        Panel(
            "GPU numbers available",
            "Whether the server could read any. A driver that hangs shows here, and nowhere else in the "
            "server.",
            "bool_yes_no",
            (Query(series("llm_runtime_gpu_up"), "{{instance}}"),),
        ),
    ),
)

PAGE = Dashboard(
    uid="llm-runtime-gpu",
    title="LLM Runtime / GPU",
    description="Load, memory, power and health of the GPUs.",
    variables=(
        Variable("job", '{__name__=~"DCGM_FI_DEV_GPU_UTIL|llm_runtime_ready"}'),
        Variable("instance", '{__name__=~"DCGM_FI_DEV_GPU_UTIL|llm_runtime_ready", job=~"$job"}'),
        Variable("gpu", '{__name__=~"DCGM_FI_DEV_GPU_UTIL|llm_runtime_gpu_power_watts", job=~"$job"}'),
    ),
    rows=(LOAD, POWER, HEALTH, OWN),
)
