"""A program for an environment that has torch and safetensors, which may not be ours:

    python awq_weights.py FOLDER TARGET [GROUP]

Writes a model's weights with four bits each in the layout of AWQ's checkpoints, for engines that have its
kernels: every group of GROUP inputs of an output has a scale and a zero point and is rounded to nearest.
AWQ proper also scales channels by what flows through them, from samples; this does not, so it says what
the layout and its kernels cost, and answers worse than AWQ proper should. Run by path, so it imports
nothing of ours.

Layout: Lin et al., "AWQ: Activation-aware Weight Quantization", 2023, as its authors' checkpoints have it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

BITS = 4
LEVELS = (1 << BITS) - 1
PER_WORD = 32 // BITS
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which output of eight lies in the nibbles of a word, lowest first."""

GROUP = 64
SMALLEST = 2.0**-14
LAYERS = ".layers."
KEPT_WHOLE = ("embed", "lm_head", "norm")
WEIGHT = ".weight"


def is_rounded(name: str, shape: tuple[int, ...]) -> bool:
    """Whether this is the matrix of a layer's projection."""
    inside = LAYERS in f".{name}" and name.endswith(WEIGHT)
    return inside and len(shape) == 2 and not any(word in name for word in KEPT_WHOLE)


def rounded(weight: Any, group: int) -> tuple[Any, Any, Any]:
    """Codes (inputs, outputs), zero points and scales (both inputs / group, outputs) of a weight (outputs,
    inputs), all of numpy. Zero lies within every range, so that it stays zero.

    Raises ValueError where groups do not fit.
    """
    import numpy as np

    num_outputs, num_inputs = weight.shape
    if num_inputs % group or num_outputs % PER_WORD:
        raise ValueError(
            f"{num_inputs} inputs are no groups of {group}, or {num_outputs} outputs fill no words"
        )
    grouped = np.ascontiguousarray(weight.T, dtype=np.float32).reshape(-1, group, num_outputs)
    high = np.maximum(grouped.max(axis=1), 0.0)
    low = np.minimum(grouped.min(axis=1), 0.0)
    # What is rounded with is what is stored. The smallest is the smallest normal number of half precision.
    scales = np.maximum((high - low) / LEVELS, SMALLEST).astype(np.float16)
    exact = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / exact), 0, LEVELS)
    codes = np.clip(np.rint(grouped / exact[:, None]) + zeros[:, None], 0, LEVELS)
    return codes.reshape(num_inputs, num_outputs).astype(np.int32), zeros.astype(np.int32), scales


def packed(codes: Any) -> Any:
    """Eight columns to a word of 32 bits: (rows, columns) to (rows, columns / 8), of numpy."""
    import numpy as np

    rows, columns = codes.shape
    eights = codes.astype(np.uint32).reshape(rows, columns // PER_WORD, PER_WORD)
    words = np.zeros((rows, columns // PER_WORD), dtype=np.uint32)
    for position, output in enumerate(ORDER):
        words |= eights[:, :, output] << np.uint32(BITS * position)
    return words.view(np.int32)


def convert(source: Path, target: Path, group: int = GROUP) -> None:
    """Raises FileNotFoundError where `source` has no safetensors, ValueError where groups do not fit."""
    import torch
    from safetensors.torch import load_file, save_file

    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{source} has no *.safetensors")
    target.mkdir(parents=True, exist_ok=True)
    index: dict[str, str] = {}
    for file in files:  # one at a time: a large model is many of them
        tensors: dict[str, Any] = {}
        for name, tensor in load_file(file).items():
            if not is_rounded(name, tuple(tensor.shape)):
                tensors[name] = tensor
                continue
            stem = name.removesuffix(WEIGHT)
            codes, zeros, scales = rounded(tensor.float().numpy(), group)
            parts = {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales}
            tensors |= {f"{stem}.{part}": torch.from_numpy(values) for part, values in parts.items()}
        save_file(tensors, target / file.name, {"format": "pt"})
        index |= dict.fromkeys(tensors, file.name)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)
    if len(files) > 1:
        _write(target / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "awq", "bits": BITS, "group_size": group, "zero_point": True, "version": "gemm",
    }  # fmt: skip
    _write(target / "config.json", config)


def _write(path: Path, body: Any) -> None:
    path.write_text(json.dumps(body, indent=2), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} FOLDER TARGET [GROUP]")
    convert(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else GROUP)
