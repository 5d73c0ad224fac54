"""What the adapters' lists of request fields have in common."""

from __future__ import annotations

from llm_runtime.core.errors import InvalidRequest

WITHOUT_EFFECT = frozenset(
    {
        "model", "user", "metadata", "store", "safety_identifier", "prediction", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    }
)  # fmt: skip
"""Labels and hints: an answer without them is the answer that was asked for."""


def unsupported(name: str, why: str = "the engine behind this model does not support it") -> InvalidRequest:
    """The refusal of a field that the engine would ignore or that breaks it."""
    message = f"Unsupported parameter '{name}': {why}."
    return InvalidRequest(message, param=name, reason="unsupported_parameter")
