"""Where an upstream is and how it is addressed: paths, headers, TLS, from what the operator wrote.

As with the OpenAI SDKs' base URL, a URL with a path is taken as it is; one without gets `/v1`. Nothing
of it is ever shown to clients, and its secrets not even to the log.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from llm_runtime import __version__
from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.config import OpenAIConfig
from llm_runtime.engines.upstream.address import Address

URL_KEY = "engines.openai.url"
URL_VARIABLE = "LLM_RUNTIME_UPSTREAM_URL"

_UNDER_BASE: Mapping[EndpointKind, str] = {
    EndpointKind.CHAT: "/chat/completions",
    EndpointKind.COMPLETIONS: "/completions",
    EndpointKind.EMBEDDINGS: "/embeddings",
    EndpointKind.RESPONSES: "/responses",
    EndpointKind.MESSAGES: "/messages",
    EndpointKind.RERANK: "/rerank",
}
_UNDER_ROOT: Mapping[EndpointKind, str] = {EndpointKind.TOKENIZE: "/tokenize"}

ENDPOINTS = frozenset({*_UNDER_BASE, *_UNDER_ROOT})

_VERSION_SEGMENT = re.compile(r"/v\d+$")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*([\t\x20-\x7e\x80-\xff]*)")
_NOT_TO_SET = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "content-type", "accept-encoding"}
)


@dataclass(frozen=True, slots=True)
class Target:
    """base: what stands before `/chat/completions`; root: before `/health`; query: with its question
    mark, or empty. headers: sent with every request, secrets included. name: host and port, for logs.
    """

    address: Address
    base: str
    root: str
    query: str
    headers: Mapping[str, str]
    name: str

    @classmethod
    def of(cls, config: OpenAIConfig) -> Target:
        """Of a configuration with one URL. Raises ConfigError. Reads certificates from disk (blocking)."""
        parts, address = _split(config)
        path = parts.path.rstrip("/") if parts.scheme != "unix" else ""
        base = path or "/v1"
        return cls(
            address=address,
            base=base,
            root=_VERSION_SEGMENT.sub("", base),
            query=f"?{parts.query}" if parts.query else "",
            headers=_headers(config, parts),
            name=address.host_header if address.unix_path is None else "unix socket",
        )

    def path(self, kind: EndpointKind) -> str:
        if kind in _UNDER_ROOT:
            return self.under_root(_UNDER_ROOT[kind])
        return self.under_base(_UNDER_BASE[kind])

    def under_base(self, path: str) -> str:
        return self.base + path + self.query

    def under_root(self, path: str) -> str:
        return self.root + path + self.query


def endpoints_of(config: OpenAIConfig) -> frozenset[EndpointKind]:
    """Raises ConfigError."""
    unknown = sorted(set(config.endpoints) - {kind.value for kind in ENDPOINTS})
    if unknown:
        known = ", ".join(kind.value for kind in EndpointKind)
        raise ConfigError(f"engines.openai.endpoints: {unknown[0]!r} is none of {known}")
    return frozenset(map(EndpointKind, config.endpoints)) or ENDPOINTS


def secrets_of(config: OpenAIConfig) -> tuple[str, ...]:
    """Every literal that must not appear in a log: the key, header values, the URL's user part."""
    found = [config.api_key or ""]
    found += [header.partition(":")[2].strip() for header in config.headers]
    for one in config.each:
        parts = _parts(one.url or "")
        if parts is not None:
            found += [unquote(part) for part in (parts.password, parts.username) if part]
            found += [value for _, _, value in (pair.partition("=") for pair in parts.query.split("&"))]
    return tuple(secret for secret in found if secret)


def _split(config: OpenAIConfig) -> tuple[SplitResult, Address]:
    if not config.url:
        raise ConfigError(
            f"{URL_KEY} is not set: engines.backend = openai needs the server's URL, as in "
            f"{URL_VARIABLE}=http://127.0.0.1:8080/v1"
        )
    parts = _parts(config.url)
    try:
        if parts is None or parts.fragment or not config.url.isascii() or " " in config.url:
            raise ValueError
        tls = _tls(config) if parts.scheme == "https" else None
        return parts, Address.parse(config.url, tls)
    except ValueError:
        # The URL may hold a password, so it is not repeated.
        raise ConfigError(
            f"{URL_KEY} is no http, https or unix URL: write it as in {URL_VARIABLE}=https://host:8443/v1"
        ) from None


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _tls(config: OpenAIConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.tls_ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"engines.openai.tls_ca_file = {config.tls_ca_file!r} cannot be used "
            f"({error.strerror or 'not certificates in PEM form'})"
        ) from None
    if not config.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _headers(config: OpenAIConfig, parts: SplitResult) -> dict[str, str]:
    headers = {"user-agent": f"llm-runtime/{__version__}"}
    if parts.username is not None:
        if config.api_key:
            raise ConfigError(
                f"{URL_KEY} holds a user name and engines.openai.api_key is set as well: both would be "
                "the Authorization header; keep one of the two"
            )
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    if config.api_key:
        if _HEADER.fullmatch(f"authorization: {config.api_key}") is None:
            raise ConfigError("engines.openai.api_key has a character that no header can carry")
        headers["authorization"] = f"Bearer {config.api_key}"
    for position, line in enumerate(config.headers, start=1):
        match = _HEADER.fullmatch(line)
        if match is None or match[1].lower() in _NOT_TO_SET:
            raise ConfigError(
                f"engines.openai.headers: number {position} is no header that can be set; write 'Name: value'"
            )
        headers[match[1].lower()] = match[2].rstrip()
    return headers
