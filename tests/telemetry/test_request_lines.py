"""The line of a request that has ended: written in one go it is the same as from the general way."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.outcome import Outcome, Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.telemetry import request_lines
from llm_runtime.telemetry.log_events import LogEvents
from llm_runtime.telemetry.request_lines import SettledLines, settled_fields
from tests.telemetry.builders import record, request, timeline
from tests.telemetry.log_stream import Stream, configure

STAMP = '{"timestamp":"2026-11-30T12:34:56.123456Z"'
WORDS = st.sampled_from(["acme", "tiny", "größe", 'quo"ted\\', "\x85\u2028", "\ud800", "a\nb", "\x7f", ""])
NAMES = WORDS | st.text(max_size=6)
COUNTS = st.integers(0, 300) | st.sampled_from([2**60, 2**64, 2**70, -1, -(2**65)])
INSTANTS = st.none() | st.floats(0, 30) | st.just(0.25)


@given(st.data())
def test_both_ways_write_the_same_bytes(data: st.DataObject) -> None:
    stream = Stream()
    lines = configure(stream)
    settled = SettledLines(lines)
    for _ in range(3):
        line_of = timeline(
            queue_s=data.draw(INSTANTS), prefill_s=data.draw(INSTANTS), total_s=data.draw(INSTANTS)
        )
        one = record(
            request(
                data.draw(NAMES),
                data.draw(NAMES),
                tenant=data.draw(NAMES),
                kind=data.draw(st.sampled_from(EndpointKind)),
                via=data.draw(st.none() | st.sampled_from(EndpointKind)),
                priority=data.draw(st.integers(0, 9) | st.just(2**70)),
                stream=data.draw(st.booleans()),
                num_slots=data.draw(st.integers(1, 2)),
            ),
            outcome=data.draw(st.sampled_from(Outcome)),
            reason=data.draw(NAMES | st.just("x" * 65)),
            usage=Usage(
                data.draw(COUNTS), data.draw(COUNTS), data.draw(COUNTS), estimated=data.draw(st.booleans())
            ),
            line=line_of,
            replica=data.draw(st.none() | NAMES),
        )  # fmt: skip
        level = "warning" if one.outcome is Outcome.FAILED else "info"
        # The second time from what was kept of the first.
        for line in (settled.of(one), settled.of(one)):
            stream.seek(0)
            stream.truncate()
            lines.write(level, "request.settled", settled_fields(one), vetted=True)
            if line is not None:
                assert line[len(STAMP) :] + b"\n" == stream.getvalue()[len(STAMP) :]


def test_an_ordinary_request_has_its_line_in_one_go(stream: Stream) -> None:
    lines = SettledLines(configure(stream))
    for one in (record(), record(request(model="größe", stream=True), outcome=Outcome.FAILED, replica=None)):
        line = lines.of(one)
        assert line is not None
        assert json.loads(line)["request_id"] == "req-1"


def test_lines_of_both_ways_are_in_order_and_at_their_time(stream: Stream) -> None:
    events = LogEvents(configure(stream))
    before = datetime.now(UTC)
    ids = ["a", "odd\ud800", "b", 'quo"ted', "c"]
    for name in ids:
        events.settled(record(request(name)))
    seen = stream.lines
    assert [line["request_id"] for line in seen] == ids
    times = [datetime.fromisoformat(line["timestamp"]) for line in seen]
    assert times == sorted(times)
    assert before.timestamp() - 0.001 <= times[0].timestamp()
    assert times[-1] <= datetime.now(UTC)
    assert {len(line["timestamp"]) for line in seen} == {len("2026-11-30T12:34:56.123456Z")}


def test_a_console_has_lines_for_people(stream: Stream) -> None:
    LogEvents(configure(stream, fmt="console")).settled(record())
    assert b"request.settled" in stream.getvalue()
    assert not stream.getvalue().startswith(b"{")


def test_what_is_kept_is_bounded(stream: Stream) -> None:
    lines = SettledLines(configure(stream))
    for number in range(2 * request_lines.MAX_ENDS + 5):
        lines.of(record(request(tenant=f"t-{number}")))
        lines.of(record(reason=f"{number:>065}"))
    assert lines.num_kept <= request_lines.MAX_ENDS
