"""Plain answers of the families beside chat."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendError, BackendProtocolError, InvalidRequest, UnsupportedEndpoint
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.bodies import PlainReply
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.plain_bodies import MAX_PARSED_BYTES, plain_reply
from tests.wire.typed_streams import RESPONSE_USAGE, response

EMBEDDINGS: dict[str, Any] = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.25]}],
    "model": "m",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Hi"}],
    "usage": {
        "input_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1, "output_tokens": 3,
    },
}  # fmt: skip
RERANK: dict[str, Any] = {
    "id": "r", "model": "m", "usage": {"total_tokens": 9}, "results": [{"index": 0, "relevance_score": 0.5}],
}  # fmt: skip
TOKENS: dict[str, Any] = {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}


def shape(kind: EndpointKind, body: Any, model: str = "m") -> PlainReply:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return plain_reply(raw, RelayOptions(kind=kind, id="x", created=1, model=model))


GOOD = [
    (EndpointKind.EMBEDDINGS, EMBEDDINGS, Usage(5)),
    (EndpointKind.RERANK, RERANK, Usage(9)),
    (EndpointKind.TOKENIZE, TOKENS, Usage()),
    (EndpointKind.MESSAGES, MESSAGE, Usage(8, 3, 2)),
    (EndpointKind.RESPONSES, response("completed", usage=RESPONSE_USAGE), Usage(11, 3, 4)),
]


@pytest.mark.parametrize(("kind", "body", "usage"), GOOD)
def test_a_good_answer_goes_on_byte_for_byte(kind: EndpointKind, body: Any, usage: Usage | None) -> None:
    raw = b" " + orjson.dumps(body, option=orjson.OPT_INDENT_2)
    reply = shape(kind, raw)
    assert reply.raw == raw
    assert reply.usage == usage
    assert not reply.failed


@pytest.mark.parametrize(("kind", "body", "usage"), [case for case in GOOD if "model" in case[1]])
def test_the_engines_name_is_not_shown(kind: EndpointKind, body: Any, usage: Usage | None) -> None:
    reply = shape(kind, body, model="shown")
    assert orjson.loads(reply.raw) == {**body, "model": "shown"}
    assert reply.usage == usage


@pytest.mark.parametrize("kind", [case[0] for case in GOOD])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data":', b"{}", b'{"detail":"x"}'])
def test_what_is_no_answer(kind: EndpointKind, body: bytes) -> None:
    with pytest.raises(BackendProtocolError):
        shape(kind, body)


@pytest.mark.parametrize("kind", [case[0] for case in GOOD])
def test_an_error_with_status_200(kind: EndpointKind) -> None:
    with pytest.raises(BackendError) as caught:
        shape(kind, {"error": {"message": "boom at http://10.0.0.1/", "type": "x"}})
    assert "10.0.0.1" not in caught.value.message
    with pytest.raises(InvalidRequest):
        shape(kind, {"error": {"message": "too long", "code": 400}})


def test_a_response_that_failed() -> None:
    reply = shape(
        EndpointKind.RESPONSES, response("failed", error={"code": "x", "message": "http://h/ died"})
    )
    assert reply.failed
    assert orjson.loads(reply.raw)["error"] == {"code": "x", "message": "[url] died"}


def test_finish_reasons() -> None:
    cut = response("incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert shape(EndpointKind.RESPONSES, cut).finish_reason == "length"
    assert shape(EndpointKind.RESPONSES, response("completed")).finish_reason == "stop"
    assert shape(EndpointKind.MESSAGES, MESSAGE).finish_reason == "end_turn"
    assert shape(EndpointKind.RESPONSES, response("queued")).finish_reason == "stop"


def test_members_that_some_servers_leave_out() -> None:
    reply = shape(EndpointKind.EMBEDDINGS, {"data": [{"embedding": [1]}, {"embedding": [2], "index": 1}]})
    assert orjson.loads(reply.raw) == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1]},
            {"object": "embedding", "index": 1, "embedding": [2]},
        ],
    }
    assert reply.usage is None


def test_another_kind_of_tokenize_is_not_taken_for_ours() -> None:
    with pytest.raises(UnsupportedEndpoint):
        shape(EndpointKind.TOKENIZE, {"tokens": []})


def test_large_embeddings_are_not_parsed() -> None:
    vector = [0.123456789] * (MAX_PARSED_BYTES // 10)
    body = {**EMBEDDINGS, "data": [{**EMBEDDINGS["data"][0], "embedding": vector}], "model": 'org/"inner"'}
    for order in (sorted(body), sorted(body, reverse=True)):
        raw = orjson.dumps({name: body[name] for name in order})
        reply = shape(EndpointKind.EMBEDDINGS, raw, model="shown")
        assert orjson.loads(reply.raw) == {**body, "model": "shown"}
        assert reply.usage == Usage(5)
        assert shape(EndpointKind.EMBEDDINGS, reply.raw, model="shown").raw is reply.raw
        with pytest.raises(BackendProtocolError):
            shape(EndpointKind.EMBEDDINGS, raw[:-3])
