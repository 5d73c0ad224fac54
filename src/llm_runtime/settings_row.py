"""What is known of one setting beside its type and default: a line of the settings table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.engines.config import split_urls


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `flat`: the short name, `PORT` for `LLM_RUNTIME_PORT`.

    secret: never shown. is_url: shown without its user part and its query, which may be secrets.
    """

    meaning: str
    flat: str | None = None
    secret: bool = False
    is_url: bool = False

    def shown(self, value: Any) -> Any:
        """The value of a setting that is not secret, as it may be printed."""
        if not self.is_url or not isinstance(value, str):
            return value
        return ", ".join(map(_shown_url, split_urls(value)))


def _shown_url(url: str) -> str:
    head, sign, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    query = path.find("?")
    path = path if query < 0 else f"{path[:query]}?***"
    return f"{head}{sign}{'***' if user else ''}{at}{host}{slash}{path}"
