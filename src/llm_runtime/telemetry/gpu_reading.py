"""What is known of the GPUs at one moment, and how `nvidia-smi` prints it."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

QUERY_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
)


class GpuUnavailable(Exception):
    """No reading: the text says why, fit for operators."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. MiB, percent, degrees Celsius, watts; None: the driver does not tell."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    utilization_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """status: `available` or `unavailable`, then with a reason. source: `nvml` or `nvidia-smi`."""

    status: str
    source: str | None
    reason: str | None
    gpus: tuple[Gpu, ...] = ()

    @property
    def available(self) -> bool:
        return self.status == "available"

    def as_dict(self) -> dict[str, Any]:
        """The `gpu` object of the JSON metrics: sums of memory, mean utilisation, then each device."""
        gpus = self.gpus
        return {
            "status": self.status,
            "source": self.source,
            "reason": self.reason,
            "gpu_count": len(gpus),
            "memory_used_mb": _total(gpu.memory_used_mb for gpu in gpus),
            "memory_total_mb": _total(gpu.memory_total_mb for gpu in gpus),
            "utilization_pct": _mean([gpu.utilization_pct for gpu in gpus]),
            "gpus": [asdict(gpu) for gpu in gpus],
        }


def unavailable(reason: str) -> GpuReading:
    return GpuReading("unavailable", None, reason)


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """The devices of `--query-gpu=<QUERY_FIELDS> --format=csv,noheader,nounits`.

    A value such as "[N/A]" is None. Raises GpuUnavailable where the text is something else.
    """
    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True, strict=True) if row]
    except csv.Error:
        raise GpuUnavailable("nvidia-smi printed something that is not a table") from None
    if not rows:
        raise GpuUnavailable("nvidia-smi printed nothing")
    return tuple(_gpu_of(row) for row in rows)


def _gpu_of(row: Sequence[str]) -> Gpu:
    cells = [cell.strip() for cell in row]
    if len(cells) != len(QUERY_FIELDS) or not cells[0].isdecimal() or len(cells[0]) > 4:
        raise GpuUnavailable("nvidia-smi printed something that is not a table of GPUs")
    index, uuid, name, *numbers = cells
    used, total, utilization, temperature, power = map(_number, numbers)
    return Gpu(int(index), _text(uuid), _text(name), used, total, utilization, temperature, power)


def _text(cell: str) -> str | None:
    return None if not cell or cell.startswith("[") else cell[:100]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _total(values: Iterable[float | None]) -> float | None:
    """None if any device does not tell: a sum over the rest would pass for the whole."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _mean(values: Sequence[float | None]) -> float | None:
    total = _total(values)
    return None if total is None else total / len(values)
