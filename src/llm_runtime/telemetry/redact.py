"""Takes keys out of a finished log line, wherever in it they stand: a field, a URL, a traceback.

The line is the last place they all pass, so nothing that writes a log needs to think of it. What
looks like a key goes, and so does every literal secret the server was configured with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = b"[redacted]"
MIN_SECRET_LENGTH = 8

_NAME = rb"(?:authorization|api[_-]?keys?|passw(?:or)?d|secret|cookie|(?:access|auth|refresh)[_-]token)"
_STRING = rb'"(?:[^"\\]|\\.)*"'
_LIST = rb'\[(?:[^\]"]|' + _STRING + rb")*\]"
_QUOTE = rb"""(?:\\?['"])?"""
_WORD = rb"""[^\s'",;&\\\[\]{}]+"""

_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # A member of a JSON object, by its name; the value is a string or a list.
        (rb'("[^"\\]{0,40}' + _NAME + rb'[^"\\]{0,20}"\s*:\s*)(?:' + _STRING + rb"|" + _LIST + rb")",
         rb'\1"' + MASK + rb'"'),
        # A header, a repr or an assignment in running text.
        (rb"(" + _NAME + _QUOTE + rb"\s*[:=]\s*b?" + _QUOTE + rb")(?:(?:bearer|basic)\s+)?" + _WORD,
         rb"\1" + MASK),
        (rb"(\bbearer\s+)[^\s'\",\\\[]{6,}", rb"\1" + MASK),
        # A command line, as text or as a list.
        (rb"(--?[a-z-]*(?:key|token|passw(?:or)?d|secret)(?:=|\s+|['\"],\s*['\"]))" + _WORD, rb"\1" + MASK),
        # A URL: a parameter, and the user part.
        (rb"([?&](?:key|token)=)" + _WORD, rb"\1" + MASK),
        (rb"(://)[^/\s@'\"\\\[]+@", rb"\1" + MASK + rb"@"),
        # Keys known by their shape.
        (rb"\bsk-[a-z0-9_-]{4,}", rb"sk-" + MASK),
        (rb"\b(?:hf_|[a-z]?sk_|ghp_)[a-z0-9_]{12,}", MASK),
        (rb"\b(?:akia[0-9a-z]{16}|aiza[0-9a-z_-]{30,}|eyj[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]*)", MASK),
    )
)  # fmt: skip

# Every line that a pattern can match has one of these, and an ordinary request's line has none: to
# look for them costs a tenth of trying the patterns.
_SIGNS = (
    b"sk-", b"sk_", b"bearer", b"authorization", b"api_key", b"api-key", b"apikey", b"passw", b"secret",
    b"cookie", b'token"', b"token'", b"token=", b"token:", b"token ", b"token\\", b"-key", b"key=", b"://",
    b"hf_", b"ghp_", b"akia", b"aiza", b"eyj",
)  # fmt: skip


class Redactor:
    """secrets: literal values that must never be logged, such as configured keys. Stateless in use.

    Literals below eight characters are left alone: they would tear ordinary words to pieces.
    """

    __slots__ = ("_literals",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        literals: set[bytes] = set()
        for secret in secrets:
            if len(secret) >= MIN_SECRET_LENGTH:
                literals.add(secret.encode("utf-8", "surrogateescape"))
                literals.add(json.dumps(secret)[1:-1].encode())
        # The longest first: a secret may be the beginning of another.
        self._literals = tuple(sorted(literals, key=len, reverse=True))

    def __call__(self, line: bytes) -> bytes:
        for literal in self._literals:
            if literal in line:
                line = line.replace(literal, MASK)
        lower = line.lower()
        for sign in _SIGNS:
            if sign in lower:
                return _apply(line)
        return line


def _apply(line: bytes) -> bytes:
    for pattern, replacement in _PATTERNS:
        line = pattern.sub(replacement, line)
    return line
