"""Keys are taken out wherever they stand, ordinary lines stay as they are, and JSON stays JSON."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.telemetry.redact import Redactor

SECRET = "Zq81xVbT0pLmNn77"


def line(**fields: Any) -> bytes:
    return orjson.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "x", **fields})


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: {SECRET}",
        f"authorization='Bearer {SECRET}'",
        f'headers={{"Authorization": "Bearer {SECRET}"}}',
        f"{{'authorization': 'Basic {SECRET}='}}",
        f"[(b'authorization', b'Bearer {SECRET}')]",
        f"Proxy-Authorization: Basic {SECRET}==",
        f"sent bearer {SECRET} upstream",
        f"api_key={SECRET}",
        f"OPENAI_API_KEY={SECRET} llm-runtime serve",
        f"x-api-key: {SECRET}",
        f"GET /v1/models?api_key={SECRET}&x=1",
        f"GET /v1/models?key={SECRET}",
        f"GET /v1/models?x=1&token={SECRET}",
        f"vllm serve --api-key {SECRET} --port 1",
        f"vllm serve --api-key={SECRET}",
        f"['vllm', '--api-key', '{SECRET}']",
        f"connect to https://user:{SECRET}@host:8443/v1 failed",
        f"connect to https://{SECRET}@host/v1 failed",
        f"password: {SECRET}",
        f"Set-Cookie: session={SECRET}",
        f"access_token: {SECRET}",
        f"sk-{SECRET}",
        f"(sk-proj-{SECRET})",
        f"hf_{SECRET}",
        f"gsk_{SECRET}",
        f"ghp_{SECRET}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJz{SECRET}.{SECRET}",
    ],
)
def test_a_key_in_running_text_goes(text: str) -> None:
    for shown in (text, text.upper().replace(SECRET.upper(), SECRET), f"line one\n{text}\nline three"):
        cleaned = Redactor()(line(message=shown, other="kept"))
        assert SECRET.encode() not in cleaned
        assert json.loads(cleaned)["other"] == "kept"


@pytest.mark.parametrize(
    "name", ["authorization", "Authorization", "api_key", "apiKey", "api_keys", "x-api-key",
             "upstream_api_key", "password", "client_secret", "set-cookie", "access_token"],
)  # fmt: skip
@pytest.mark.parametrize("value", [SECRET, [SECRET, f"a]b{SECRET}"], f'with "quotes" {SECRET}'])
def test_a_member_with_a_telling_name_loses_its_value(name: str, value: Any) -> None:
    for fields in ({name: value}, {"nested": {"deep": [{name: value}]}}):
        cleaned = Redactor()(line(**fields, other="kept"))
        assert SECRET.encode() not in cleaned
        assert json.loads(cleaned)["other"] == "kept"


@pytest.mark.parametrize("secret", ["plain-word-key", 'quo"ted\\key!', "a-key-with-ümlaut"])
def test_a_configured_secret_goes_whatever_it_looks_like(secret: str) -> None:
    cleaned = Redactor([secret, "plain-word"])(line(message=f"told {secret} and more", other="kept"))
    shown = json.loads(cleaned)
    assert shown["message"] == "told [redacted] and more"
    assert shown["other"] == "kept"


def test_a_secret_that_begins_another_leaves_no_rest() -> None:
    cleaned = Redactor(["abcdefgh", "abcdefgh-longer"])(line(message="abcdefgh-longer"))
    assert b"longer" not in cleaned


def test_a_secret_of_a_few_letters_does_not_tear_the_line() -> None:
    assert json.loads(Redactor(["true", "info"])(line(flag=True)))["level"] == "info"


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": "key-ab12cd34", "prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 0},
        {"message": "Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)"},
        {"message": "risk-free task-queue, disk_usage, masked"},
        {"message": "the token bucket is empty", "reason": "invalid_api_key"},
        {"message": "POST /v1/chat/completions?stream=true"},
        {"message": "mail someone@example.com"},
        {"keys": ["a", "b"], "max_tokens": 16, "tokenizer": "x"},
    ],
)
def test_ordinary_lines_stay_as_they_are(fields: dict[str, Any]) -> None:
    assert Redactor()(line(**fields)) == line(**fields)


FRAGMENTS = st.sampled_from(
    ["authorization", "Bearer ", "sk-abcdefgh", "api_key", '"', "\\", "=", ":", " ", "[", "]", "://", "@",
     "?key=", "--token ", "{", "}", ",", "\n", "secret", "x", "😀", "eyJ", "hf_"]
)  # fmt: skip
TEXT = st.lists(FRAGMENTS, max_size=14).map("".join)
JSON = st.recursive(
    TEXT | st.integers(-1000, 1000) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_was_json_is_json_afterwards(fields: dict[str, Any]) -> None:
    cleaned = Redactor(["abcdefghij", 'with"quote'])(orjson.dumps(fields))
    assert isinstance(json.loads(cleaned), dict)
    assert b"\n" not in cleaned


def test_long_lines_take_linear_time() -> None:
    """No pattern backtracks over a long value: a megabyte of near-matches is done at once."""
    for text in ("authorization " * 70_000, '\\"' * 300_000, "sk-" * 300_000, "://" * 300_000, "[" * 500_000):
        Redactor()(line(authorization=text, message=text))
