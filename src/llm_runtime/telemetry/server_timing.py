"""The `Server-Timing` receipt: where a request's time went, in the header's own grammar."""

from __future__ import annotations

import re
from typing import Final

from llm_runtime.core.timeline import Timeline
from llm_runtime.telemetry.digits import milliseconds

MAX_DESC: Final = 64
MAX_KNOWN: Final = 256
_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")
_known: Final[dict[tuple[str, str], str]] = {}
"""Entries that were written before: of replicas and policies, which are few and in every receipt."""


def server_timing(
    timeline: Timeline, *, replica: str | None = None, policy: str | None = None, decode: bool = True
) -> str:
    """The header's value, of what is known by now; "" if nothing is. Milliseconds. ASCII only.

    decode False: leaves out decode and total, for a stream's header, which goes out with the first
    token. Example: `queue;dur=0.4, prefill;dur=25.1, replica;desc="mock-0"`.
    """
    value = f"{_span(', queue', timeline.queue_wait_s)}{_span(', prefill', timeline.prefill_s)}"
    if decode:
        value += f"{_span(', decode', timeline.decode_s)}{_span(', total', timeline.e2e_s)}"
    if replica:
        value += _described("replica", replica)
    if policy:
        value += _described("policy", policy)
    return value[2:]


def _span(name: str, span_s: float | None) -> str:
    return "" if span_s is None else f"{name};dur={milliseconds(max(span_s, 0.0))}"


def _described(name: str, text: str) -> str:
    entry = _known.get((name, text))
    if entry is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        entry = _known[name, text] = f', {name};desc="{_UNSAFE.sub("_", text[:MAX_DESC])}"'
    return entry
