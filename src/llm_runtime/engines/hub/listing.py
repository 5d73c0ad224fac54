"""What a repository of the hub holds, and which of it serving needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.ref import HubRef, is_inside

_AROUND_WEIGHTS = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
        "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
        "chat_template.json", "preprocessor_config.json", "processor_config.json",
        "model.safetensors.index.json",
    }
)  # fmt: skip
_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja|[^/]+\.tiktoken")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_OLD_WEIGHTS = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin")
_OLD_INDEX = "pytorch_model.bin.index.json"
_GGUF_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """num_bytes, sha256, git_oid: None where the hub does not say. Large files have a sha256, small ones
    only git's own checksum (a SHA-1 over length and content)."""

    name: str
    num_bytes: int | None = None
    sha256: str | None = None
    git_oid: str | None = None

    @property
    def checksum(self) -> str | None:
        """`sha256:...` or `git:...`, which both say what the content is."""
        if self.sha256 is not None:
            return f"sha256:{self.sha256}"
        return f"git:{self.git_oid}" if self.git_oid is not None else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


def read_listing(answer: Any) -> Listing:
    """From `GET /api/models/ORG/NAME/revision/REV?blobs=true`. Raises ConfigError if it is not that."""
    commit = answer.get("sha") if isinstance(answer, Mapping) else None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise ConfigError("the hub's answer is no listing of a model; is --hf-endpoint the address of a hub?")
    files = [_file(entry) for entry in answer.get("siblings") or () if isinstance(entry, Mapping)]
    return Listing(commit, tuple(file for file in files if file is not None))


def choose(ref: HubRef, listing: Listing) -> tuple[RemoteFile, ...]:
    """The files to bring: the one named (with its other parts), or those that serving needs.

    Raises ConfigError that names what could be asked for instead.
    """
    by_name = {file.name: file for file in listing.files}
    if ref.file is not None:
        return tuple(by_name[name] for name in _named(ref, ref.file, by_name))
    weights = _weights(by_name)
    if not weights or "config.json" not in by_name:
        raise ConfigError(_nothing_to_serve(ref, by_name, has_weights=bool(weights)))
    around = [name for name in by_name if name in _AROUND_WEIGHTS or _TEMPLATES.fullmatch(name)]
    return tuple(by_name[name] for name in (*around, *weights))


def _file(entry: Mapping[str, Any]) -> RemoteFile | None:
    name = entry.get("rfilename")
    if not isinstance(name, str) or not is_inside(name):
        return None
    large = entry.get("lfs")
    large = large if isinstance(large, Mapping) else {}
    size = large.get("size", entry.get("size"))
    return RemoteFile(
        name,
        size if isinstance(size, int) else None,
        _hex(large.get("sha256"), 64),
        _hex(entry.get("blobId"), 40) if not large else None,
    )


def _hex(value: Any, length: int) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{length}}}", value) else None


def _named(ref: HubRef, file: str, by_name: Mapping[str, RemoteFile]) -> list[str]:
    if file not in by_name:
        similar = sorted(name for name in by_name if name.endswith(file[file.rfind(".") :])) or sorted(
            by_name
        )
        raise ConfigError(f"hf:{ref.repo} has no file {file!r}; it has {_some(similar)}")
    part = _GGUF_PART.fullmatch(file)
    if part is None:
        return [file]
    count = part["count"]
    names = [f"{part['stem']}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    if lacking := [name for name in names if name not in by_name]:
        raise ConfigError(f"hf:{ref.repo} lacks {_some(lacking)}, without which {file!r} cannot be used")
    return names


def _weights(by_name: Mapping[str, RemoteFile]) -> list[str]:
    """What Transformers and vLLM load: shards where there is an index, else the one file, else whatever
    is in this format; files of the older format only where there is nothing better."""
    top_level = [name for name in by_name if "/" not in name]
    shards = [name for name in top_level if _SHARD.fullmatch(name)]
    if "model.safetensors.index.json" in by_name and shards:
        return shards
    if "model.safetensors" in by_name:
        return ["model.safetensors"]
    if others := [name for name in top_level if name.endswith(".safetensors")]:
        return others
    old = [name for name in top_level if _OLD_WEIGHTS.fullmatch(name)]
    return [*old, _OLD_INDEX] if old and _OLD_INDEX in by_name else old


def _nothing_to_serve(ref: HubRef, by_name: Mapping[str, RemoteFile], *, has_weights: bool) -> str:
    if ggufs := sorted(name for name in by_name if name.endswith(".gguf")):
        return f"hf:{ref.repo} holds GGUF files; name the one to bring, as in hf:{ref.repo}:{_some(ggufs)}"
    lacking = "config.json" if has_weights else "weights that can be served (*.safetensors or *.gguf)"
    return f"hf:{ref.repo} has no {lacking}; it has {_some(sorted(by_name)) or 'no files'}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
