"""A model folder with the shape of Qwen2.5-0.5B and no weights, for vLLM's `--load-format dummy`.

    python benchmarks/dummy_model.py --tokenizer FOLDER --output FOLDER [--layers N]

For hosts that can fetch no model: weights do not change what a step costs. The tokenizer is another
model's, made as large as the vocabulary, so that every token is text and none is lost in a stream.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

QWEN_05B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
"""As its makers publish it."""
COPIED = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SPACE = "\u0120"  # how byte-level vocabularies write the space before a word


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="folder with a byte-level tokenizer.json"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=QWEN_05B["num_hidden_layers"], help="fewer: a trial")
    options = parser.parse_args(arguments)
    write(options.tokenizer, options.output, options.layers)
    print(options.output)
    return 0


def write(tokenizer: Path, output: Path, layers: int) -> None:
    """Replaces what is in `output`. Raises OSError without a tokenizer."""
    text = (tokenizer / "tokenizer.json").read_bytes()
    output.mkdir(parents=True, exist_ok=True)
    config = {**QWEN_05B, "num_hidden_layers": layers}
    (output / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    (output / "tokenizer.json").write_bytes(orjson.dumps(widened(orjson.loads(text), config["vocab_size"])))
    for name in COPIED:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, output / name)


def widened(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """The same with words for all ids up to the size that it has none for."""
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    more = {f"{SPACE}word{number}": number for number in range(size) if number not in taken}
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": {**vocabulary, **more}}}


if __name__ == "__main__":
    sys.exit(main())
