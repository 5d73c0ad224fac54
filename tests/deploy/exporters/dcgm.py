"""What NVIDIA's DCGM exporter makes of a list of counters: the fields of `dcgm-counters.csv` for two GPUs."""

from __future__ import annotations

from pathlib import Path

GPUS = ((0, "GPU-aa", "00000000:17:00.0"), (1, "GPU-bb", "00000000:65:00.0"))
MODEL = "NVIDIA H200"
VALUE = 40.0


def fields(counters: Path) -> list[tuple[str, str, str]]:
    """Name, type and help of each line, as the exporter reads them: comments and empty lines left out."""
    lines = counters.read_text(encoding="utf-8").splitlines()
    rows = [line.split(",", 2) for line in lines if line.strip() and not line.startswith("#")]
    return [(name.strip(), kind.strip(), text.strip()) for name, kind, text in rows]


def recorded(counters: Path) -> str:
    """One scrape. Fields of type `label` become labels of the others; an XID comes with its meaning."""
    every = fields(counters)
    labels = "".join(f',{name}="590.48.01"' for name, kind, _ in every if kind == "label")
    lines = []
    for name, kind, text in every:
        if kind == "label":
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        cause = ',err_code="0",err_msg="No Error"' if name == "DCGM_FI_DEV_XID_ERRORS" else ""
        for number, uuid, bus in GPUS:
            series = (
                f'{name}{{gpu="{number}",UUID="{uuid}",pci_bus_id="{bus}",device="nvidia{number}",'
                f'modelName="{MODEL}",hostname="gpu-host"{labels}{cause}}}'
            )
            lines.append(f"{series} {0 if cause else VALUE}")
    return "\n".join(lines) + "\n"
