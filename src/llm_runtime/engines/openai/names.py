"""Under which names an upstream's models are served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from llm_runtime.core.errors import ConfigError

MAX_MODELS = 1000
MAX_NAME = 512


def configured_names(model_name: str | None, models: Iterable[str]) -> Mapping[str, str]:
    """Served name -> the upstream's, from `served=upstream` or `name`; empty: take what is there.

    model_name: serve that one only; it may be one of `models`. Raises ConfigError.
    """
    names: dict[str, str] = {}
    for text in models:
        served, sign, upstream = (part.strip() for part in text.partition("="))
        if not served or (sign and not upstream):
            raise ConfigError(
                f"engines.openai.models: {text!r} names no model; write 'name', or 'served=upstream'"
            )
        if served in names:
            raise ConfigError(f"engines.openai.models: {served!r} is given twice")
        names[served] = upstream or served
    if model_name is None:
        return names
    if not names:
        return {model_name: model_name}
    if model_name not in names:
        raise ConfigError(
            f"model.name = {model_name!r} is none of engines.openai.models: add '{model_name}=upstream' there"
        )
    return {model_name: names[model_name]}


def listed_names(body: bytes) -> list[str] | None:
    """Of the answer to `GET /v1/models`, each once, in order; None if it is no such list."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return None
    names = (item.get("id") for item in data if isinstance(item, dict))
    usable = (name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_NAME)
    return list(dict.fromkeys(name for name in usable if name.isprintable()))[:MAX_MODELS]
