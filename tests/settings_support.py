"""How the settings tests load settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.settings import Settings, load_settings


def from_env(**variables: str) -> Settings:
    return load_settings({}, {f"LLM_RUNTIME_{name}": value for name, value in variables.items()})


def from_yaml(folder: Path, text: str) -> Settings:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings({}, {}, str(path))


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load()
    return caught.value.message
