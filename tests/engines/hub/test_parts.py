"""The pure parts of the hub's client: refs, listings, waits."""

from __future__ import annotations

import email.utils

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.http import retry_after_s
from llm_runtime.engines.hub.listing import Listing, RemoteFile, choose
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.transfer import Retries

COMMIT = "a" * 40


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("hf:org/name", HubRef("org/name")),
        ("hf:org/Name-1.5_x", HubRef("org/Name-1.5_x")),
        ("hf:org/name@v1.0", HubRef("org/name", "v1.0")),
        ("hf:org/name@refs/pr/3", HubRef("org/name", "refs/pr/3")),
        ("hf:org/name:a/b-Q4_K_M.gguf", HubRef("org/name", file="a/b-Q4_K_M.gguf")),
        ("hf:org/name@v1:x.gguf", HubRef("org/name", "v1", "x.gguf")),
    ],
)
def test_refs_are_read_and_written_alike(text: str, ref: HubRef) -> None:
    assert HubRef.parse(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize(
    "text",
    [
        "org/name", "hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:.a/b", "hf:a/b:", "hf:a/b:../c",
        "hf:a/b:/etc/passwd", "hf:a/b:x//y", "hf:a/b@", "hf:a/b ", "hf:a/b:x\\y", "hf:a/b:./x",
    ],
)  # fmt: skip
def test_what_is_no_ref_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write hf:ORG/NAME"):
        HubRef.parse(text)


def chosen(*names: str, file: str | None = None) -> set[str]:
    listing = Listing(COMMIT, tuple(RemoteFile(name) for name in names))
    return {one.name for one in choose(HubRef("o/n", file=file), listing)}


@pytest.mark.parametrize(
    ("here", "wanted"),
    [
        # Shards where there is an index, also beside the one file of another precision.
        (
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors",
             "model-00002-of-00002.safetensors", "consolidated.safetensors", "model.fp16.safetensors"],
            {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
             "model-00002-of-00002.safetensors"},
        ),
        (["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"], {"model.safetensors"}),
        (["consolidated.safetensors", "params.json"], {"consolidated.safetensors"}),
        (
            ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "optimizer.bin"],
            {"pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"},
        ),
        (
            ["model.safetensors", "tokenizer.model", "qwen.tiktoken", "vocab.json", "merges.txt",
             "chat_template.jinja", "additional_chat_templates/tool.jinja", "special_tokens_map.json"],
            {"model.safetensors", "tokenizer.model", "qwen.tiktoken", "vocab.json", "merges.txt",
             "chat_template.jinja", "additional_chat_templates/tool.jinja", "special_tokens_map.json"},
        ),
        (["model.safetensors", "code.py", "LICENSE", "runs/events.json", "eval.json"], {"model.safetensors"}),
    ],
)  # fmt: skip
def test_what_serving_needs(here: list[str], wanted: set[str]) -> None:
    assert chosen("config.json", *here) == {"config.json", *wanted}


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (["README.md"], "has no weights that can be served"),
        ([], "has no files"),
        (["config.json", "flax_model.msgpack"], "has no weights that can be served"),
        (["adapter_model.safetensors", "adapter_config.json"], "has no config.json"),
        (["x.gguf"], "name the one to bring, as in hf:o/n:x.gguf"),
    ],
)
def test_what_cannot_be_served_is_told(here: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(*here)
    assert words in caught.value.message


def test_a_split_file_that_is_not_whole_is_told() -> None:
    with pytest.raises(ConfigError, match=r"lacks x-00002-of-00002\.gguf"):
        chosen("x-00001-of-00002.gguf", file="x-00001-of-00002.gguf")


def test_long_lists_are_cut() -> None:
    names = [f"{number}.gguf" for number in range(100, 140)]
    with pytest.raises(ConfigError) as caught:
        chosen(*names, file="x.gguf")
    assert "111.gguf and 28 more" in caught.value.message
    assert "112.gguf" not in caught.value.message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        (email.utils.formatdate(1030, usegmt=True), 30.0),
        (email.utils.formatdate(900, usegmt=True), 0.0),
        ("soon", None),
        ("-3", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now=1000.0) == seconds


def test_waits_double_up_to_the_longest() -> None:
    retries = Retries(first_wait_s=1.0, longest_wait_s=30.0)
    assert [retries.wait_s(number, chance=1.0) for number in (1, 2, 3, 4, 5, 6, 60)] == [
        1,
        2,
        4,
        8,
        16,
        30,
        30,
    ]
    assert retries.wait_s(3, chance=0.0) == 2.0
