"""Takes keys out of a finished log line, wherever in it they stand: a field, a URL, a traceback.

The line is the last place they all pass, so nothing that writes a log needs to think of it. What
looks like a key goes, and so does every literal secret the server was configured with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

MASK = "[redacted]"
MIN_SECRET_LENGTH = 8

_NAME = r"(?:authorization|api[_-]?keys?|passw(?:or)?d|secret|cookie|(?:access|auth|refresh)[_-]token)"
_TELLING_MEMBER = re.compile(_NAME, re.IGNORECASE)
_WORD = r"""[^\s'",;&()\[\]{}]+"""
_OPTION = r"(?<![a-z0-9-])--?[a-z-]{0,40}(?:key|token|passw(?:or)?d|secret)"

# No pattern goes back over a long stretch: what repeats without limit can start at one place only.
_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # A header, a repr or an assignment.
        (rf"""({_NAME}['"]?\s*[:=]\s*(?:b(?=['"]))?['"]?)(?:(?:bearer|basic)\s+)?{_WORD}""", rf"\1{MASK}"),
        (r"""(\bbearer\s+)[^\s'",]{6,}""", rf"\1{MASK}"),
        # A command line, as text or as a list.
        (rf"""({_OPTION}(?:=|\s+|['"],\s*['"])){_WORD}""", rf"\1{MASK}"),
        # A URL: a parameter, and the user part.
        (rf"([?&](?:key|token)=){_WORD}", rf"\1{MASK}"),
        (r"""(://)[^/\s@'"]+@""", rf"\1{MASK}@"),
        # Keys known by their shape.
        (r"\bsk-[a-z0-9_-]{4,}", f"sk-{MASK}"),
        (r"\b(?:hf_|[a-z]?sk_|ghp_)[a-z0-9_]{12,}", MASK),
        (r"\b(?:akia[0-9a-z]{16}|aiza[0-9a-z_-]{30,})", MASK),
        (r"(?<![a-z0-9_-])eyj[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]*", MASK),
    )
)

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

    __slots__ = ("_literals", "_signs")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        literals = {secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH}
        # The longest first: a secret may be the beginning of another.
        self._literals = tuple(sorted(literals, key=len, reverse=True))
        # Part of a secret that JSON writes as it is, whichever encoder wrote the line.
        self._signs = tuple(max(re.split(r"[^ !#-\[\]-~]", one), key=len).encode() for one in self._literals)

    def __call__(self, line: bytes) -> bytes:
        """The line, a JSON object, with the same structure and without keys. ASCII if it was changed."""
        lower = line.lower()
        if not any(sign in lower for sign in _SIGNS) and not any(sign in line for sign in self._signs):
            return line
        return json.dumps(self._value(json.loads(line)), separators=(",", ":")).encode()

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {self._text(name): self._member(name, item) for name, item in value.items()}
        return value

    def _member(self, name: str, value: Any) -> Any:
        return MASK if value is not None and _TELLING_MEMBER.search(name) else self._value(value)

    def _text(self, text: str) -> str:
        for literal in self._literals:
            text = text.replace(literal, MASK)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text
