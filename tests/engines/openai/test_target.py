"""What the operator writes, and what becomes of it; nothing of it leaks."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.config import OpenAIConfig
from llm_runtime.engines.openai.target import ENDPOINTS, Target, endpoints_of, secrets_of

SECRET = "sk-UPSTREAMSECRET"


def target(url: str, **more: Any) -> Target:
    return Target.of(OpenAIConfig(url=url, **more))


@pytest.mark.parametrize(
    ("url", "chat", "health", "tokenize"),
    [
        ("http://h:8080", "/v1/chat/completions", "/health", "/tokenize"),
        ("http://h:8080/", "/v1/chat/completions", "/health", "/tokenize"),
        ("http://h/v1/", "/v1/chat/completions", "/health", "/tokenize"),
        ("https://h/team/v1", "/team/v1/chat/completions", "/team/health", "/team/tokenize"),
        ("https://h/v1beta/openai/", "/v1beta/openai/chat/completions", "/v1beta/openai/health", None),
        ("https://h/v1?api-version=2", "/v1/chat/completions?api-version=2", "/health?api-version=2", None),
        ("unix:///run/engine.sock", "/v1/chat/completions", "/health", "/tokenize"),
    ],
)
def test_paths(url: str, chat: str, health: str, tokenize: str | None) -> None:
    there = target(url)
    assert there.path(EndpointKind.CHAT) == chat
    assert there.under_root("/health") == health
    if tokenize is not None:
        assert there.path(EndpointKind.TOKENIZE) == tokenize


def test_every_endpoint_has_a_path() -> None:
    there = target("http://h")
    assert frozenset(EndpointKind) == ENDPOINTS
    assert len({there.path(kind) for kind in EndpointKind}) == len(EndpointKind)


def test_endpoints() -> None:
    assert endpoints_of(OpenAIConfig()) == ENDPOINTS
    assert endpoints_of(OpenAIConfig(endpoints=("chat",))) == {EndpointKind.CHAT}
    with pytest.raises(ConfigError, match="'chats' is none of chat, completions"):
        endpoints_of(OpenAIConfig(endpoints=("chat", "chats")))


def test_address() -> None:
    there = target("http://[::1]:9000/v1").address
    assert (there.host, there.port, there.ssl_context) == ("::1", 9000, None)
    assert target("unix:///run/engine.sock").address.unix_path == "/run/engine.sock"
    tls = target("https://h").address
    assert tls.port == 443
    assert tls.ssl_context is not None
    assert tls.ssl_context.verify_mode is ssl.CERT_REQUIRED
    unverified = target("https://h", tls_verify=False).address.ssl_context
    assert unverified is not None
    assert (unverified.verify_mode, unverified.check_hostname) == (ssl.CERT_NONE, False)


def test_headers() -> None:
    there = target("http://h", api_key=SECRET, headers=("X-Team: a, b", "anthropic-version:2023-06-01"))
    assert there.headers["authorization"] == f"Bearer {SECRET}"
    assert there.headers["x-team"] == "a, b"
    assert there.headers["anthropic-version"] == "2023-06-01"
    assert there.headers["user-agent"].startswith("llm-runtime/")
    user = target("http://us%40er:p%3Ass@h/v1")
    assert user.headers["authorization"] == "Basic " + base64.b64encode(b"us@er:p:ss").decode()
    assert user.address.host == "h"
    assert user.name == "h"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"url": None}, "engines.openai.url is not set"),
        ({"url": "ftp://user:PASSWORD-1@h"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@h:99999/v1"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@[::1/v1"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@/v1"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@h/v1#x"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@h/a b"}, "no http, https or unix URL"),
        ({"url": "http://user:PASSWORD-1@h", "api_key": SECRET}, "keep one of the two"),
        ({"url": "http://h", "api_key": f"{SECRET}\n"}, "api_key has a character"),
        ({"url": "http://h", "headers": ("x-key sk-UPSTREAMSECRET",)}, "number 1 is no header"),
        ({"url": "http://h", "headers": ("a: b", f"x-key: {SECRET}\r\nb: c")}, "number 2 is no header"),
        ({"url": "http://h", "headers": ("Host: h",)}, "number 1 is no header"),
        ({"url": "https://h", "tls_ca_file": "/nowhere.pem"}, "tls_ca_file"),
    ],
)
def test_what_makes_no_sense_is_said_without_secrets(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Target.of(OpenAIConfig(**config))
    assert says in caught.value.message
    assert SECRET not in caught.value.message
    assert "PASSWORD-1" not in caught.value.message


def test_a_file_without_certificates(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="tls_ca_file"):
        target("https://h", tls_ca_file=str(file))


def test_secrets_are_known_for_redaction() -> None:
    config = OpenAIConfig(
        url="https://user-name:pass%20word@h/v1?key=query-key", api_key=SECRET, headers=("x-key: header-key",)
    )
    assert set(secrets_of(config)) == {SECRET, "header-key", "user-name", "pass word", "query-key"}
    assert secrets_of(OpenAIConfig()) == ()
    several = OpenAIConfig(url="http://a:PASSWORD-1@h, https://b:PASSWORD-2@i/v1?k=PASSWORD-3")
    assert set(secrets_of(several)) == {"a", "b", "PASSWORD-1", "PASSWORD-2", "PASSWORD-3"}


def test_several_urls_are_several_configurations() -> None:
    config = OpenAIConfig(url="http://h:1/v1?a=b,c , unix:///s,HTTPS://i", api_key=SECRET)
    assert [one.url for one in config.each] == ["http://h:1/v1?a=b,c", "unix:///s", "HTTPS://i"]
    assert {one.api_key for one in config.each} == {SECRET}
    assert OpenAIConfig().each == (OpenAIConfig(),)
