"""The `Server-Timing` receipt: where a request's time went, in the header's own grammar."""

from __future__ import annotations

import re
from typing import Final

from llm_runtime.core.timeline import Timeline
from llm_runtime.telemetry.digits import milliseconds

MAX_DESC: Final = 64
MAX_KNOWN: Final = 256
_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")
_known: Final[dict[tuple[str | None, str | None], str]] = {}
"""What names a replica and a policy, as it was written before: there are few, and each receipt has one."""


def server_timing(
    timeline: Timeline, *, replica: str | None = None, policy: str | None = None, decode: bool = True
) -> str:
    """The header's value, of what is known by now; "" if nothing is. Milliseconds. ASCII only.

    decode False: leaves out decode and total, for a stream's header, which goes out with the first
    token. Example: `queue;dur=0.4, prefill;dur=25.1, replica;desc="mock-0"`.
    """
    queue_s, prefill_s = timeline.queue_wait_s, timeline.prefill_s
    names = _named(replica, policy)
    if not decode:
        return f"{_span(', queue', queue_s)}{_span(', prefill', prefill_s)}{names}"[2:]
    decode_s, total_s = timeline.decode_s, timeline.e2e_s
    if queue_s is not None and prefill_s is not None and decode_s is not None and total_s is not None:
        # The usual case at its shortest.
        return (
            f"queue;dur={_ms(queue_s)}, prefill;dur={_ms(prefill_s)}, decode;dur={_ms(decode_s)}, "
            f"total;dur={_ms(total_s)}{names}"
        )
    spans = f"{_span(', queue', queue_s)}{_span(', prefill', prefill_s)}{_span(', decode', decode_s)}"
    return f"{spans}{_span(', total', total_s)}{names}"[2:]


def _span(name: str, span_s: float | None) -> str:
    return "" if span_s is None else f"{name};dur={_ms(span_s)}"


def _ms(span_s: float) -> str:
    return milliseconds(span_s if span_s > 0.0 else 0.0)


def _named(replica: str | None, policy: str | None) -> str:
    key = (replica, policy)
    names = _known.get(key)
    if names is None:
        names = _described("replica", replica) + _described("policy", policy)
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = names
    return names


def _described(name: str, text: str | None) -> str:
    return f', {name};desc="{_UNSAFE.sub("_", text[:MAX_DESC])}"' if text else ""
