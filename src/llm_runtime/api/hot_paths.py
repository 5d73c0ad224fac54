"""Which path is which inference endpoint."""

from __future__ import annotations

import asyncio

from llm_runtime.api.inference import InferenceEndpoint
from llm_runtime.api.services import Services
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.passed_requests import (
    parse_embeddings,
    parse_messages,
    parse_rerank,
    parse_responses,
    parse_tokenize,
)
from llm_runtime.wire.requests import parse_any_chat, parse_completions


def hot_paths(services: Services) -> dict[str, InferenceEndpoint]:
    """By path. They share the lock that lets big bodies through one at a time."""
    big_bodies = asyncio.Lock()
    return {
        path: InferenceEndpoint(kind, parse, services, big_bodies)
        for path, kind, parse in (
            # Which kinds of content a model takes is known once its engine is: `Runtime.check`.
            ("/v1/chat/completions", EndpointKind.CHAT, parse_any_chat),
            ("/v1/completions", EndpointKind.COMPLETIONS, parse_completions),
            ("/v1/responses", EndpointKind.RESPONSES, parse_responses),
            ("/v1/messages", EndpointKind.MESSAGES, parse_messages),
            ("/v1/embeddings", EndpointKind.EMBEDDINGS, parse_embeddings),
            ("/v1/rerank", EndpointKind.RERANK, parse_rerank),
            ("/tokenize", EndpointKind.TOKENIZE, parse_tokenize),
        )
    }
