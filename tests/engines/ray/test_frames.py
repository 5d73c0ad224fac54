from __future__ import annotations

import pytest

from llm_runtime.core.errors import BackendError, ContextLengthExceeded, LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import Finished
from llm_runtime.engines.ray.frames import pack, pack_end, pack_error, pack_request, unpack, unpack_request

USAGE = Usage(10, 3, 2)


@pytest.mark.parametrize("has_token", [False, True])
@pytest.mark.parametrize("usage", [USAGE, Usage(estimated=True)])
def test_a_frame_keeps_bytes_and_counts(has_token: bool, usage: Usage) -> None:
    frame = unpack(pack(b"data: x\n\n", has_token=has_token, usage=usage))
    assert (frame.data, frame.has_token, frame.usage) == (b"data: x\n\n", has_token, usage)
    assert frame.finished is None
    assert frame.error is None


@pytest.mark.parametrize("first_token_s", [None, 0.0, 0.25])
@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("data", [b"", b"data: [DONE]\n\n"])
def test_the_last_frame_says_how_it_ended(first_token_s: float | None, failed: bool, data: bytes) -> None:
    finished = Finished(USAGE, "length", failed)
    frame = unpack(pack_end(data, finished, has_token=True, first_token_s=first_token_s))
    assert (frame.data, frame.finished, frame.first_token_s) == (data, finished, first_token_s)
    assert frame.has_token


def test_an_error_comes_back_as_what_it_was() -> None:
    error = ContextLengthExceeded("Too long.", param="messages", retry_after_s=1.5)
    back = unpack(pack_error(error, USAGE)).error
    assert type(back) is ContextLengthExceeded
    assert (back.message, back.reason, back.param, back.retry_after_s) == (
        "Too long.", "context_length_exceeded", "messages", 1.5,
    )  # fmt: skip


def test_an_error_nobody_knows_here_is_still_one() -> None:
    class Unheard(LLMRuntimeError):
        reason = "unheard"

    back = unpack(pack_error(Unheard("What?"), Usage(estimated=True)))
    assert type(back.error) is BackendError
    assert back.error.reason == "unheard"
    assert back.usage.estimated


def test_a_request_arrives_whole_with_the_clock_of_where_it_arrives() -> None:
    request = RuntimeRequest(
        id="r", model="m", kind=EndpointKind.CHAT, body={"messages": [], "logit_bias": {"5": 1}},
        arrived_at=5.0, created=7, tenant="t", priority=2, stream=True, include_usage=True, num_slots=2,
        num_prompt_tokens=4, num_prompt_bytes=9, max_tokens=3, cap_field="max_tokens",
        via=EndpointKind.RESPONSES,
    )  # fmt: skip
    back = unpack_request(pack_request(request), 99.0)
    assert back.arrived_at == 99.0
    for name in (
        "id", "model", "kind", "body", "created", "tenant", "priority", "stream", "include_usage",
        "num_slots", "num_prompt_tokens", "num_prompt_bytes", "max_tokens", "cap_field", "via",
    ):  # fmt: skip
        assert getattr(back, name) == getattr(request, name), name
