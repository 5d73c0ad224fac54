"""Requests to a hub: redirects, the token's reach, and which failures another try can mend."""

from __future__ import annotations

import email.utils
import ipaddress
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import IO, Any
from urllib.parse import urlsplit

from llm_runtime import __version__
from llm_runtime.core.errors import ConfigError

TIMEOUT_S = 30.0
"""For a connection, and for every piece of an answer."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Transient(Exception):
    """Another try may help. retry_after_s: when the server said so."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The server's last word. code: the hub's own word for why, where it gave one."""

    def __init__(self, status: int, code: str | None) -> None:
        super().__init__(f"the hub answered {status}")
        self.status = status
        self.code = code


class HubHttp:
    """Owned by one pull; any thread may use it.

    The token goes to the endpoint and to nobody else: a redirect to another origin loses it. Proxies of
    the environment are used, except for this machine's own addresses.
    """

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        """Raises ConfigError for an endpoint that is no http or https address."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ConfigError("--hf-endpoint (HF_ENDPOINT) has to be an address such as https://hub.example")
        if token is not None and not all("!" <= character <= "~" for character in token):
            raise ConfigError("HF_TOKEN has a character that no header can carry")
        self._endpoint = endpoint.rstrip("/")
        self._authorization = f"Bearer {token}" if token else None
        self._opener = urllib.request.build_opener(_Proxies(), _Redirects(_origin(endpoint)))

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        """The answer to a GET, its body unread; the caller closes it. Raises Transient, Refused."""
        request = urllib.request.Request(f"{self._endpoint}{path}", headers=dict(headers or {}))  # noqa: S310
        request.add_header("User-Agent", f"llm-runtime/{__version__}")
        request.add_header("Accept-Encoding", "identity")
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise _failure(error.code, error.headers) from None
        except (OSError, HTTPException) as error:
            raise Transient(reason_of(error)) from error
        return answer


def reason_of(error: BaseException) -> str:
    """In a few words, without addresses."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def retry_after_s(text: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header, which holds seconds or a date. now: Unix seconds."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None


def _failure(status: int, headers: Message) -> Transient | Refused:
    if status in _PASSING:
        return Transient(f"the server answered {status}", retry_after_s(headers["Retry-After"], time.time()))
    return Refused(status, headers["X-Error-Code"])


class _Proxies(urllib.request.ProxyHandler):
    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:
        if _is_loopback(urlsplit(req.full_url).hostname or ""):
            return None
        return super().proxy_open(req, proxy, type)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """urllib never carries an unredirected header on; within one origin the token has to follow."""

    def __init__(self, origin: tuple[str, str]) -> None:
        self._own = origin

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if following is not None and token is not None and _origin(newurl) == self._own:
            following.add_unredirected_header("Authorization", token)
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
