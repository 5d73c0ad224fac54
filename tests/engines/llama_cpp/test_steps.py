"""What is asked of the engine for embeddings and tokenize, and what is made of its answers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.llama_cpp.steps import steps_for

HELLO = [{"role": "user", "content": "Hello"}]


def request(kind: EndpointKind, **body: Any) -> RuntimeRequest:
    return RuntimeRequest(id="r", model="m", kind=kind, body=body, arrived_at=0.0, created=1)


@pytest.mark.parametrize(
    ("inputs", "calls"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_embeddings_are_asked_for_one_by_one(inputs: Any, calls: list[Any]) -> None:
    steps = steps_for(request(EndpointKind.EMBEDDINGS, input=inputs, encoding_format="base64"), 64)
    for index, text in enumerate(calls):
        assert steps.next() == ("/v1/embeddings", {"input": text, "encoding_format": "base64"})
        assert steps.spent() == Usage(3 * index, estimated=True)
        steps.take({"data": [{"embedding": f"v{index}", "index": 0}], "usage": {"prompt_tokens": 3}})
    assert steps.next() is None
    reply = steps.reply()
    assert orjson.loads(reply.raw) == {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": i, "embedding": f"v{i}"} for i in range(len(calls))],
        "usage": {"prompt_tokens": 3 * len(calls), "total_tokens": 3 * len(calls)},
    }
    assert reply.usage == steps.spent() == Usage(3 * len(calls))


@pytest.mark.parametrize("answer", [{}, {"data": []}, {"data": [{}]}, {"data": [1]}, {"data": [{}, {}]}])
def test_no_embedding(answer: dict[str, Any]) -> None:
    with pytest.raises(BackendProtocolError):
        steps_for(request(EndpointKind.EMBEDDINGS, input="a"), 64).take(answer)


TOKENS = {"tokens": [{"id": 7, "piece": "He"}, {"id": 8, "piece": [240, 159]}]}


@pytest.mark.parametrize(("given", "asked"), [({}, True), ({"add_special_tokens": False}, False)])
def test_a_text_is_tokenized(given: dict[str, Any], asked: bool) -> None:
    steps = steps_for(request(EndpointKind.TOKENIZE, prompt="Hello", **given), 64)
    assert steps.next() == ("/tokenize", {"content": "Hello", "add_special": asked, "with_pieces": True})
    steps.take(TOKENS)
    assert steps.next() is None
    reply = steps.reply()
    assert orjson.loads(reply.raw) == {
        "count": 2, "max_model_len": 64, "tokens": [7, 8], "token_strs": None,
    }  # fmt: skip
    assert reply.usage == Usage()


def test_an_empty_text_has_no_tokens() -> None:
    steps = steps_for(request(EndpointKind.TOKENIZE, prompt=""), 64)
    assert steps.next() is not None
    steps.take({"tokens": []})
    assert steps.next() is None
    assert orjson.loads(steps.reply().raw)["count"] == 0


def test_a_conversation_goes_through_the_template() -> None:
    body = {"messages": HELLO, "add_generation_prompt": False, "return_token_strs": True}
    steps = steps_for(request(EndpointKind.TOKENIZE, **body), 64)
    assert steps.next() == ("/apply-template", {"messages": HELLO, "add_generation_prompt": False})
    steps.take({"prompt": "<user>Hello"})
    path, sent = steps.next() or ("", {})
    assert (path, sent["content"], sent["add_special"]) == ("/tokenize", "<user>Hello", False)
    steps.take(TOKENS)
    assert orjson.loads(steps.reply().raw)["token_strs"] == ["He", "\ufffd"]


@pytest.mark.parametrize("answer", [{}, {"tokens": [1]}, {"tokens": [{"id": "x", "piece": "x"}]}])
def test_no_tokens(answer: dict[str, Any]) -> None:
    with pytest.raises(BackendProtocolError):
        steps_for(request(EndpointKind.TOKENIZE, prompt="x"), 64).take(answer)
