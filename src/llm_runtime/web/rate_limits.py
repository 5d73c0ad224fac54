"""A tenant's standing as the `x-ratelimit-*` headers that OpenAI's clients know."""

from __future__ import annotations

import math

from llm_runtime.core.standing import Standing, Window
from llm_runtime.web.errors import Header

RATE_LIMIT_HEADERS = (
    *(
        f"x-ratelimit-{what}-{unit}"
        for unit in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ),
    "x-ratelimit-limit-concurrency",
    "x-ratelimit-remaining-concurrency",
)
"""Names, for CORS. The last two are ours: OpenAI limits no requests at once."""


def rate_limit_headers(standing: Standing | None) -> list[Header]:
    """None: the tenant has no limits, so there is nothing to tell."""
    if standing is None:
        return []
    headers: list[Header] = []
    if standing.requests is not None:
        headers += _window(b"requests", standing.requests)
    if standing.tokens is not None:
        headers += _window(b"tokens", standing.tokens)
    places = standing.concurrency
    if places is not None:
        headers.append((b"x-ratelimit-limit-concurrency", b"%d" % places.limit))
        headers.append((b"x-ratelimit-remaining-concurrency", b"%d" % places.remaining))
    return headers


def _window(unit: bytes, window: Window) -> list[Header]:
    return [
        (b"x-ratelimit-limit-" + unit, b"%d" % window.limit),
        (b"x-ratelimit-remaining-" + unit, b"%d" % window.remaining),
        (b"x-ratelimit-reset-" + unit, span(window.reset_s).encode("ascii")),
    ]


def span(seconds: float) -> str:
    """A duration as OpenAI writes it: `0s`, `12ms`, `6m0s`, `1h2m3s`; rounded up, never early."""
    if seconds < 1:
        milliseconds = math.ceil(seconds * 1000)
        if milliseconds < 1000:
            return f"{milliseconds}ms" if milliseconds > 0 else "0s"
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
