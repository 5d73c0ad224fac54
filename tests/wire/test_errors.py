from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.errors import (
    BackendError,
    BackendUnavailable,
    BodyTooLarge,
    ContextLengthExceeded,
    InvalidRequest,
    LLMRuntimeError,
    UpstreamRefused,
)
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects import dialect_for
from llm_runtime.wire.errors import error_object, safe_text, upstream_error


def test_the_error_object_has_its_four_keys() -> None:
    error = error_object("m", "invalid_request_error")
    assert error == {"message": "m", "type": "invalid_request_error", "param": None, "code": None}


@pytest.mark.parametrize("kind", [EndpointKind.CHAT, EndpointKind.COMPLETIONS])
def test_error_event_and_body(kind: EndpointKind) -> None:
    dialect = dialect_for(kind)
    error = error_object('say "x"\n', "server_error", None, "backend_error")
    event = dialect.error_event(error)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert orjson.loads(event[6:]) == orjson.loads(dialect.error_body(error)) == {"error": error}


@pytest.mark.parametrize(
    ("payload", "status", "expected", "text"),
    [
        ({"error": {"message": "bad n", "code": 400, "param": "n"}}, None, InvalidRequest, "bad n"),
        ({"error": "just a string"}, 400, InvalidRequest, "just a string"),
        ({"detail": "x"}, 500, BackendError, "x"),
        ({"object": "error", "message": "vllm", "code": 400}, None, InvalidRequest, "vllm"),
        ({"error": {"message": "q", "code": "context_length_exceeded"}}, 400, ContextLengthExceeded, "q"),
        (
            {
                "error": {
                    "code": 400,
                    "message": "request (2031 tokens) exceeds it",
                    "type": "exceed_context_size_error",
                }
            },
            400,
            ContextLengthExceeded,
            "2031",
        ),
        (
            {"message": "the maximum context length is 4096"},
            400,
            ContextLengthExceeded,
            "4096",
        ),
        ({"error": {"message": "too big"}}, 413, BodyTooLarge, "too big"),
        ({"error": {"message": "Incorrect API key sk-UPSTREAMSECRET"}}, 401, UpstreamRefused, "operator"),
        ({"error": {"message": "no such model"}}, 404, UpstreamRefused, "operator"),
        ({"error": {"message": "slow down"}}, 429, BackendUnavailable, ""),
        ({"error": {"message": "loading"}}, 503, BackendUnavailable, ""),
        ({"error": {"message": "boom"}}, 200, BackendError, "boom"),
        ({"error": {"message": 7, "code": True}}, None, BackendError, "failed"),
        (None, 502, BackendError, "failed"),
        ("<html><body>nginx</body></html>", 502, BackendError, "failed"),
    ],
)
def test_upstream_errors(payload: Any, status: int, expected: type[LLMRuntimeError], text: str) -> None:
    error = upstream_error(payload, status)
    assert type(error) is expected
    assert text in error.message
    for secret in ("SECRET", "nginx", "<"):
        assert secret not in error.message


def test_the_param_is_kept() -> None:
    assert upstream_error({"error": {"message": "m", "param": "temperature"}}, 400).param == "temperature"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("connect to http://user:pass@engine.internal:8000/v1 failed", "connect to [url] failed"),
        ("open /home/someone/models/real.gguf: no such file", "open [path]: no such file"),
        ("10.1.2.3:8000 refused", "[host] refused"),
        ("localhost:9 refused", "[host] refused"),
        ("engine-0.engines.svc:8000 refused", "[host] refused"),
        ("key sk-abcdefghijkl is wrong", "key [secret] is wrong"),
        ("Authorization: Bearer abc.def", "Authorization: [secret]"),
        ("a\r\nlevel=ERROR forged\x00", "a level=ERROR forged"),
        ("n must be 1/2 or and/or 3", "n must be 1/2 or and/or 3"),
        ("<!DOCTYPE html><p>x", ""),
        ("x" * 1000, "x" * 299 + "…"),
    ],
)
def test_safe_text(text: str, expected: str) -> None:
    assert safe_text(text) == expected


@given(st.text(max_size=400))
def test_safe_text_is_one_short_line(text: str) -> None:
    safe = safe_text(text)
    assert len(safe) <= 300
    assert safe == " ".join(safe.split())
