"""F31, F34: what an upstream's refusal means for our client."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from llm_runtime.core import errors as e
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.openai.refusals import MAX_RETRY_AFTER_S, refusal, retry_after_s
from llm_runtime.engines.upstream import Exchange
from llm_runtime.web.errors import row_of
from tests.engines.driving import make_request

NOT_OURS = b'{"error":{"message":"Incorrect key sk-UPSTREAMSECRET at http://10.0.0.1:80/","code":"x"}}'
PAGE = b"<html><head><title>502 Bad Gateway</title></head>nginx at 10.0.0.1</html>"


async def told(
    status: int, body: bytes, kind: EndpointKind = EndpointKind.CHAT, **headers: str
) -> e.LLMRuntimeError:
    exchange = Exchange(b"", None)
    exchange.status = status
    exchange.headers = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    request = replace(make_request("m", kind=EndpointKind.CHAT), kind=kind)
    return refusal(exchange, body, request, wall=lambda: 1_000_000_000.0)


@pytest.mark.parametrize(
    ("status", "body", "kind", "seen"),
    [
        (400, b'{"error":{"message":"bad","param":"top_p","code":null}}', e.InvalidRequest, 400),
        (400, b'{"error":"just a string"}', e.InvalidRequest, 400),
        (400, b'{"error":{"message":"maximum context length is 5"}}', e.ContextLengthExceeded, 400),
        (400, PAGE, e.InvalidRequest, 400),
        (413, b"", e.BodyTooLarge, 413),
        (422, b'{"detail":"no"}', e.UnprocessableRequest, 422),
        (422, b'{"detail":[{"msg":"no"}]}', e.UnprocessableRequest, 422),
        (401, NOT_OURS, e.UpstreamUnauthorized, 401),
        (402, NOT_OURS, e.UpstreamRefused, 502),
        (403, NOT_OURS, e.UpstreamForbidden, 403),
        (404, b'{"detail":"Not Found"}', e.UpstreamNotFound, 404),
        (404, b'{"error":{"message":"The model `x` does not exist.","code":404}}', e.ModelNotFound, 404),
        (404, b'{"error":{"message":"x","code":"model_not_found"}}', e.ModelNotFound, 404),
        (415, b"{}", e.UpstreamRefused, 502),
        (408, b"", e.BackendUnavailable, 503),
        (429, b"{}", e.UpstreamRateLimited, 429),
        (429, b'{"error":{"type":"insufficient_quota","message":"pay"}}', e.BackendError, 502),
        (503, b'{"error":{"message":"Loading model"}}', e.UpstreamFailing, 503),
        (503, b'{"error":{"message":"x","type":"overloaded_error"}}', e.BackendUnavailable, 503),
        (503, b'{"error":{"message":"x","code":"queue_full"}}', e.BackendUnavailable, 503),
        (529, b'{"type":"error","error":{"type":"overloaded_error"}}', e.BackendUnavailable, 503),
        (500, b'{"detail":"x"}', e.BackendError, 502),
        (502, PAGE, e.BackendError, 502),
        (504, b"", e.BackendError, 502),
        (301, b"", e.BackendProtocolError, 502),
        (204, b"", e.BackendProtocolError, 502),
    ],
)
async def test_meaning(status: int, body: bytes, kind: type[e.LLMRuntimeError], seen: int) -> None:
    error = await told(status, body)
    assert type(error) is kind
    assert row_of(error).status == seen
    for secret in ("SECRET", "10.0.0.1", "<", "nginx"):
        assert secret not in error.message


@pytest.mark.parametrize("kind", [EndpointKind.RESPONSES, EndpointKind.RERANK, EndpointKind.EMBEDDINGS])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),
        (404, b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'),
        (405, b""),
        (501, b'{"error":{"message":"This server does not support embeddings.","code":501}}'),
        (
            404,
            b'{"error":{"message":"The model m does not support this","code":"unsupported_endpoint"}}',
        ),
    ],
)
async def test_an_endpoint_that_is_not_there(status: int, body: bytes, kind: EndpointKind) -> None:
    error = await told(status, body, kind)
    assert type(error) is e.UnsupportedEndpoint
    assert row_of(error).status == 404


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, 1.0),
        ({"retry_after": "5"}, 5.0),
        ({"retry_after": "0"}, 0.0),
        ({"retry_after": "soon"}, 1.0),
        ({"retry_after": "nan"}, 1.0),
        ({"retry_after": "-3"}, 0.0),
        ({"retry_after": "1e9"}, MAX_RETRY_AFTER_S),
        ({"retry_after": "5", "retry_after_ms": "250"}, 0.25),
    ],
)
@pytest.mark.parametrize(
    ("status", "body"), [(429, b"{}"), (503, b'{"error":{"code":"slow_down"}}'), (408, b"")]
)
async def test_back_pressure_keeps_its_time(
    status: int, body: bytes, headers: dict[str, str], wait_s: float
) -> None:
    error = await told(status, body, EndpointKind.CHAT, **headers)
    assert error.retry_after_s == pytest.approx(wait_s)


async def test_a_503_is_back_pressure_only_if_it_says_so() -> None:
    """What says neither why nor for how long may as well stand before a server that is dead."""
    assert (await told(503, b"", retry_after="2")).retry_after_s == 2.0
    for body, headers in ((b"", {}), (PAGE, {}), (b"{}", {"retry_after": "soon"})):
        error = await told(503, body, EndpointKind.CHAT, **headers)
        assert type(error) is e.UpstreamFailing
        assert error.retry_after_s is None


def test_a_date_as_retry_after() -> None:
    now = 1_000_000_000.0
    date = format_datetime(datetime.fromtimestamp(now + 7, UTC), usegmt=True)
    assert retry_after_s({b"retry-after": date.encode()}, now) == pytest.approx(7.0)
    assert retry_after_s({b"retry-after": date.encode()}, now + 99) == 0.0
