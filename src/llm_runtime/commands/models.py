"""`llm-runtime models`: which model files are here, where they are, and bringing the builtin one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.assets import ModelStore, StoredModel
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.download_bar import download_bar
from llm_runtime.engines.hub.pull import DEFAULT_ENDPOINT, Hub
from llm_runtime.engines.hub.pull import pull as pull_model
from llm_runtime.engines.hub.ref import PREFIX as HUB_PREFIX
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.transfer import Retries
from llm_runtime.engines.vllm.command import find_python
from llm_runtime.engines.weights import SafetensorsStore

_SOURCES = {
    "package": "installed with the package",
    "cache": "in the model folder",
    "absent": "not here; `llm-runtime models pull` brings it",
}


def pull(store: ModelStore, ref: str) -> Path:
    with download_bar(f"Fetching {ref}") as report:
        return store.pull(ref, report)


def pull_from_hub(store: ModelStore, ref: str, hub: Hub) -> Iterator[str]:
    """Brings a model of the hub; yields the lines of shell that make the next `serve` use it.

    Raises ConfigError.
    """
    hub_ref = HubRef.parse(ref)
    with download_bar(f"Fetching {ref}") as report:
        pulled = pull_model(hub_ref, store.hub, hub, report)
    if pulled.unchecked:
        yield f"# the hub publishes no checksum for {', '.join(pulled.unchecked)}"
    is_gguf = pulled.path.suffix == ".gguf"
    name = pulled.path.stem if is_gguf else hub_ref.repo
    yield f"export LLM_RUNTIME_BACKEND={'llama.cpp' if is_gguf else 'vllm'}"
    yield f"export LLM_RUNTIME_MODEL_PATH={shlex.quote(str(pulled.path))}"
    yield f"export LLM_RUNTIME_MODEL_NAME={shlex.quote(name)}"


def hub_settings(environ: Mapping[str, str], endpoint: str | None, workers: int, retries: int) -> Hub:
    """endpoint: before `HF_ENDPOINT`. The token is `HF_TOKEN`, and never an argument: those are public."""
    return Hub(
        endpoint or environ.get("HF_ENDPOINT", "").strip() or DEFAULT_ENDPOINT,
        environ.get("HF_TOKEN", "").strip() or None,
        workers,
        Retries(retries),
    )


def table(store: ModelStore) -> Iterator[str]:
    models = store.models()
    width = max(len(model.ref) for model in models)
    for model in models:
        yield f"{model.ref:<{width}}  {model.num_bytes / 1e6:>9,.1f} MB  {_SOURCES[model.source]}"


def path(store: ModelStore, name: str) -> Path:
    """The file of a model named as the list names it, by its short name, or by its file's name.

    Raises ConfigError where there is none.
    """
    if name.startswith(HUB_PREFIX):
        return store.hub.demand(HubRef.parse(name))
    for model in store.models():
        if name in _names(model):
            if model.path is None:
                raise ConfigError(f"{model.ref} is not here; `llm-runtime models pull {model.ref}` brings it")
            return model.path
    known = ", ".join(model.ref for model in store.models())
    raise ConfigError(f"no model is called {name!r}; there is {known}")


def convert(ref: str, config: VllmConfig, environ: Mapping[str, str], tell: Callable[[str], object]) -> Path:
    """The folder made of a builtin model or a GGUF file, now or before, by the Python that vLLM would be
    served with. tell: is given a line before the work. Raises ConfigError."""
    return SafetensorsStore(environ, tell).ensure(ref, find_python(config, environ))


def _names(model: StoredModel) -> set[str]:
    names = {model.ref, model.ref.removeprefix("builtin:")}
    return names if model.path is None else names | {model.path.name, model.path.stem}
