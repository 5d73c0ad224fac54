"""Weights for engines that read safetensors: where `model.path` leads them, and how a GGUF model becomes
a folder they can read.

The conversion is done once and kept in the cache folder, by a program in the environment of the engine
that needs it. Everything here blocks: call it before the loop runs or in a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.assets import BUILTIN_PREFIX, ModelStore
from llm_runtime.engines.config import ModelConfig
from llm_runtime.engines.hub.ref import PREFIX as HUB_PREFIX
from llm_runtime.engines.hub.ref import HubRef

CONVERTER = Path(__file__).with_name("gguf_to_safetensors.py")
MAX_LINES_TOLD = 8
MARKED_BYTES = 1 << 20
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_SUFFIX = ".gguf"


def resolve_safetensors(
    config: ModelConfig,
    python: str | None,
    environ: Mapping[str, str],
    tell: Callable[[str], object] = lambda _: None,
) -> tuple[str, str]:
    """The name that clients use, and what such an engine is to load: a folder, or a name of the hub.

    A builtin model is converted where that has not been done yet. python: an interpreter that can.
    tell: as for `SafetensorsStore`. Raises ConfigError.
    """
    ref = config.path
    if ref.startswith(BUILTIN_PREFIX):
        folder = SafetensorsStore(environ, tell).ensure(ref, python)
        return config.name or ref.removeprefix(BUILTIN_PREFIX), str(folder)
    if ref.startswith(HUB_PREFIX):
        hub_ref = HubRef.parse(ref)
        return config.name or hub_ref.repo, str(_folder_of_hub(ref, hub_ref, ModelStore(environ)))
    path = Path(ref).expanduser()
    if (path / "config.json").is_file():
        return config.name or path.absolute().name, str(path.absolute())
    if path.suffix == _SUFFIX and path.is_file():
        raise ConfigError(
            f"model.path = {ref!r} is a GGUF file, which this engine does not read; "
            f"`llm-runtime models convert {ref}` makes a folder of it that it does"
        )
    if path.exists() or not _HUB_NAME.fullmatch(ref):
        raise ConfigError(
            f"model.path = {ref!r} is neither a folder with a config.json nor a model's name on the hub, as "
            f"in ORG/NAME; the builtin model is {BUILTIN_PREFIX}smollm2-135m"
        )
    return config.name or ref, ref


def _folder_of_hub(ref: str, hub_ref: HubRef, models: ModelStore) -> Path:
    if hub_ref.file is None:
        return models.hub.demand(hub_ref)
    raise ConfigError(
        f"model.path = {ref!r} is one file, and this engine reads folders; name the model without its "
        f"file, or `llm-runtime models convert {ref}` if it is a GGUF file"
    )


class SafetensorsStore:
    """GGUF models as safetensors, in a folder beside the model files. Owned by whoever starts the engine.

    Several processes may use one cache: a conversion holds a lock file, and its folder appears under its
    name only when it is complete.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        tell: Callable[[str], object] = lambda _: None,
        models: ModelStore | None = None,
    ) -> None:
        """tell: is given a line before something that takes long."""
        self._environ = environ
        self._tell = tell
        self._models = models or ModelStore(environ)
        self.folder = self._models.folder.parent / "safetensors"

    def find(self, ref: str) -> Path | None:
        """The folder made of that GGUF file or builtin model before; None if there is none."""
        source = self._models.find(ref)
        if source is None:
            return None
        folder = self._folder_of(source)
        return folder if (folder / "config.json").is_file() else None

    def ensure(self, ref: str, python: str | None) -> Path:
        """The same, converting it (and pulling a builtin) where it is missing. Raises ConfigError."""
        source = self._models.ensure(ref)
        folder = self._folder_of(source)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f".{folder.name}.lock"):
                if not (folder / "config.json").is_file():
                    self._convert(source, folder, python)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.folder} for converted models cannot be used: {error.strerror}; name "
                "another one in LLM_RUNTIME_CACHE"
            ) from error
        return folder

    def _folder_of(self, source: Path) -> Path:
        return self.folder / f"{source.stem}-{_mark(source)}"

    def _convert(self, source: Path, folder: Path, python: str | None) -> None:
        if python is None:
            raise ConfigError(
                f"{source.name} has to be converted for this engine, and no environment with torch and "
                "transformers is known: run `make vllm-env`, or name its Python in engines.vllm.python"
            )
        self._tell(f"Converting {source.name} for engines that read safetensors; a minute for a small model")
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=self.folder) as scratch:
            target = Path(scratch) / "model"
            environ = {**self._environ, "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
            command = (python, str(CONVERTER), str(source), str(target))
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                last = "\n".join(done.stderr.strip().splitlines()[-MAX_LINES_TOLD:])
                raise ConfigError(f"{source.name} could not be converted by {python}:\n{last}")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(target, folder)


def _mark(path: Path) -> str:
    """Tells one version of a file from another by its size and its two ends, where the header is and the
    last tensors are: reading all of a large model would take longer than anybody wants to wait."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(MARKED_BYTES))
        file.seek(max(0, size - MARKED_BYTES))
        digest.update(file.read(MARKED_BYTES))
    return digest.hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock with the process, so a killed conversion blocks nobody.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
