"""The `Server-Timing` receipt: where a request's time went, in the header's own grammar."""

from __future__ import annotations

import re

from llm_runtime.core.timeline import Timeline

MAX_DESC = 64
_UNSAFE = re.compile(r"[^ !#-\[\]-~]")


def server_timing(
    timeline: Timeline, *, replica: str | None = None, policy: str | None = None, decode: bool = True
) -> str:
    """The header's value, of what is known by now; "" if nothing is. Milliseconds. ASCII only.

    decode False: leaves out decode and total, for a stream's header, which goes out with the first
    token. Example: `queue;dur=0.4, prefill;dur=25.1, replica;desc="mock-0"`.
    """
    parts = []
    spans = [("queue", timeline.queue_wait_s), ("prefill", timeline.prefill_s)]
    if decode:
        spans += [("decode", timeline.decode_s), ("total", timeline.e2e_s)]
    for name, span_s in spans:
        if span_s is not None:
            parts.append(f"{name};dur={max(span_s, 0.0) * 1000:.3f}".rstrip("0").rstrip("."))
    for name, text in (("replica", replica), ("policy", policy)):
        if text:
            parts.append(f'{name};desc="{_UNSAFE.sub("_", text[:MAX_DESC])}"')
    return ", ".join(parts)
