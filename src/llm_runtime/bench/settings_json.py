"""A plan as JSON: every setting a reader needs to repeat the run, and no secret, user or path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from llm_runtime.bench.config import Plan, Target, TraceFile
from llm_runtime.bench.lengths import Fixed, LogNormal, Normal, Uniform

SECRETS = frozenset({"api_key"})


def plan_settings(plan: Plan, salt: str) -> dict[str, Any]:
    """salt: the one used, which the plan may have left open."""
    return {**plain(plan), "salt": salt, "load_kind": type(plan.load).__name__}


def plain(value: Any) -> Any:
    """Dataclasses as objects, lengths in their notation, functions as their names, secrets as whether they
    were given."""
    if isinstance(value, Fixed | Uniform | Normal | LogNormal):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _member(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, partial):
        return {"function": value.func.__name__, **plain(value.keywords)}
    if callable(value) and not isinstance(value, type):
        return {"function": getattr(value, "__name__", type(value).__name__)}
    return value


def public_url(url: str) -> str:
    """Without user and password, and without the folder of a Unix socket."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix:{PurePath(parts.path).name}"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _member(owner: Any, name: str) -> Any:
    value = getattr(owner, name)
    if name in SECRETS:
        return None if value is None else "given"
    if isinstance(owner, Target) and name == "headers":
        return dict.fromkeys(value, "given")
    if isinstance(owner, Target) and name == "url":
        return public_url(value)
    if isinstance(owner, TraceFile) and name == "path":
        return PurePath(value).name
    return plain(value)
