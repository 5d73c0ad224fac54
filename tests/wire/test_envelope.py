"""Where an event's changing string is found: the short way and the regular expression say the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.wire.envelope import learn

TEXTS = st.text(alphabet=st.sampled_from('ab "\\\né你:}'), min_size=1, max_size=6)
EXTRAS = st.dictionaries(
    st.sampled_from(["content", "note", "x"]),
    st.sampled_from(["a", "content", '"content":"a"', {"content": "a"}, ["content"], None]),
    max_size=2,
)


@given(TEXTS, EXTRAS, st.booleans(), st.booleans())
def test_an_envelope_is_what_stands_around_the_text_and_only_there(
    text: str, extras: dict[str, Any], spaced: bool, ascii_only: bool
) -> None:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "e", "choices": [choice], **extras}
    separators = (", ", ": ") if spaced else (",", ":")
    raw = f"data: {json.dumps(event, ensure_ascii=ascii_only, separators=separators)}\n\n".encode()
    envelope = learn(raw, event, changed=False)
    again = isinstance(extras.get("content"), str) or any(isinstance(one, dict) for one in extras.values())
    assert (envelope is None) is again
    if envelope is not None:
        inside = raw[len(envelope.prefix) : len(raw) - len(envelope.suffix)]
        assert json.loads(b'"' + inside + b'"') == text
        assert envelope.prefix + inside + envelope.suffix == raw
        assert envelope.prefix.endswith((b'"content":"', b'"content": "'))
