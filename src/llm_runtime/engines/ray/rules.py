"""What a replica says of its engine to those who send it requests, as plain JSON, and what follows.

Requests are checked where they come in, before they queue, by the rules of an engine that runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import Backend, BackendInfo

Check = Callable[[RuntimeRequest], None]


def facts_of(backend: Backend) -> dict[str, Any]:
    """Of an engine that is ready."""
    from llm_runtime.engines.llama_cpp.backend import LlamaCppBackend

    facts: dict[str, Any] = {"engine": backend.info.name, "context_tokens": backend.info.context_tokens}
    if isinstance(backend, LlamaCppBackend):
        facts["tools"] = backend.abilities.tools
    return facts


def context_of(facts: Mapping[str, Any], declared: BackendInfo) -> int | None:
    """Prompt and answer together, in tokens: what the engine says, else what the settings do."""
    said = facts.get("context_tokens")
    return said if isinstance(said, int) else declared.context_tokens


def rules_of(facts: Mapping[str, Any]) -> Check | None:
    """The engine's own check; None for an engine whose rules are not known here."""
    engine = facts.get("engine")
    if engine == "mock":
        from llm_runtime.engines.mock_request import check_request

        return partial(check_request, context_tokens=facts["context_tokens"])
    if engine == "llama.cpp":
        from llm_runtime.engines.llama_cpp.fields import TemplateAbilities, check

        return partial(check, abilities=TemplateAbilities(tools=bool(facts.get("tools"))))
    if engine in ("vllm", "vllm-inprocess"):
        from llm_runtime.engines.vllm.fields import check as check_for_vllm

        return check_for_vllm
    return None
