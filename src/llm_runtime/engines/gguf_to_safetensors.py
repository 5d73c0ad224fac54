"""A program for an environment that has torch, transformers and gguf, which may not be ours:

    python gguf_to_safetensors.py FILE.gguf FOLDER

Writes the model's weights, taken out of their quantisation, and its tokenizer, as engines that read
safetensors want them: bfloat16, half the size of full precision and exact enough for weights that had
four to eight bits. Run by path, so it imports nothing of ours.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def convert(source: str, target: str) -> None:
    """Raises whatever transformers raises for a model it cannot read."""
    import torch
    import transformers

    folder, name = os.path.split(os.path.abspath(source))
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # since transformers 5 it must be asked for
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, **options)
    model.to(torch.bfloat16).save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} FILE.gguf FOLDER")
    convert(sys.argv[1], sys.argv[2])
