"""The status table and what an error reply says about trying again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import orjson
import pytest

from llm_runtime.core import errors as e
from llm_runtime.web.errors import STATUS_TABLE, error_response, row_of

ID = "req_1"


def tree(root: type[e.LLMRuntimeError] = e.LLMRuntimeError) -> Iterator[type[e.LLMRuntimeError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from tree(kind)


def leaves() -> list[type[e.LLMRuntimeError]]:
    """Of the tree itself; what a package derives for its own use takes the row above it."""
    ours = [kind for kind in tree() if kind.__module__ == e.__name__]
    return [kind for kind in ours if not any(sub in ours for sub in kind.__subclasses__())]


def headers_of(error: e.LLMRuntimeError) -> dict[str, str]:
    _, headers, _ = error_response(error, ID)
    return {key.decode(): value.decode() for key, value in headers}


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.__name__)
def test_each_leaf_has_a_row_of_its_own(kind: type[e.LLMRuntimeError]) -> None:
    assert kind in STATUS_TABLE


def test_a_class_without_a_row_takes_the_nearest_above_it() -> None:
    class Odd(e.BackendUnavailable):
        pass

    assert row_of(Odd("x")) is STATUS_TABLE[e.BackendUnavailable]


@pytest.mark.parametrize("kind", [e.LLMRuntimeError, *tree()], ids=lambda kind: kind.__name__)
def test_the_body_is_the_whole_error_object(kind: type[e.LLMRuntimeError]) -> None:
    error = kind('ünïcode "quotes"\n', param="messages[0]")
    status, headers, body = error_response(error, ID)
    assert 400 <= status < 600
    assert orjson.loads(body) == {
        "error": {
            "message": 'ünïcode "quotes"\n',
            "type": row_of(error).type,
            "param": "messages[0]",
            "code": kind.reason,
        }
    }
    assert dict(headers)[b"content-length"] == str(len(body)).encode()
    assert dict(headers)[b"x-request-id"] == ID.encode()


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        (0.0004, "1", "1"),
        (0.493, "1", "493"),
        (1.0, "1", "1000"),
        (1.0001, "2", "1001"),
        (121.5, "122", "121500"),
    ],
)
def test_waits_are_whole_seconds_with_the_exact_one_beside(
    wait_s: float, seconds: str, milliseconds: str
) -> None:
    for kind in (e.RateLimited, e.QueueFull, e.QueueTimeout, e.Draining, e.BackendUnavailable):
        headers = headers_of(kind("x", retry_after_s=wait_s))
        assert (headers["retry-after"], headers["retry-after-ms"]) == (seconds, milliseconds)
        assert int(headers["retry-after-ms"]) == math.ceil(wait_s * 1000)


@pytest.mark.parametrize("kind", [k for k in tree() if STATUS_TABLE.get(k) and STATUS_TABLE[k].status == 503])
def test_a_503_always_says_when_to_come_back(kind: type[e.LLMRuntimeError]) -> None:
    assert headers_of(kind("x"))["retry-after"] == "1"


@pytest.mark.parametrize("kind", [e.QuotaExceeded, e.DeadlineExceeded, e.BackendCrashed])
def test_where_a_retry_cannot_help_it_is_said(kind: type[e.LLMRuntimeError]) -> None:
    headers = headers_of(kind("x", retry_after_s=5))
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.__name__)
def test_only_what_leaves_the_connection_unusable_closes_it(kind: type[e.LLMRuntimeError]) -> None:
    closes = kind in (e.Draining, e.BodyTooLarge, e.BodyTimeout)
    assert (headers_of(kind("x")).get("connection") == "close") == closes


def test_a_401_names_the_scheme() -> None:
    assert headers_of(e.Unauthorized("x"))["www-authenticate"] == "Bearer"
