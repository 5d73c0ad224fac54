"""What the engine program is sent for one request, and how its answer is to be read."""

from __future__ import annotations

import orjson

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.hf.fields import passed_body
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.wire.options import RelayOptions

_PATHS = {EndpointKind.CHAT: "/v1/chat/completions", EndpointKind.COMPLETIONS: "/v1/completions"}


def engine_call(request: RuntimeRequest, run_id: int) -> EngineCall:
    """The engine always streams. run_id: the name under which the run can be ended."""
    body = {
        **passed_body(request.kind, request.body),
        "model": request.model,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    options = RelayOptions(
        kind=request.kind,
        id=f"{'cmpl' if request.kind is EndpointKind.COMPLETIONS else 'chatcmpl'}-{request.id}",
        created=request.created,
        model=request.model,
        include_usage=request.include_usage,
        num_choices=request.num_slots,
        prompt_tokens_estimate=request.num_prompt_tokens,
    )
    path = f"{_PATHS[request.kind]}?run={run_id}"
    return EngineCall(path, orjson.dumps(body), options, assemble=not request.stream)
