"""A state machine over what an engine sends, cut anywhere, and what a client does at any point.

Whatever the order: what the client has is what a relay makes of what the engine has sent, no byte more, no
byte less and none held back; one end, and the slot free.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Outcome
from llm_runtime.wire.relay import StreamRelay
from tests.dataplane.path import Path, options_of, turns
from tests.wire.builders import DONE, ROLE, STOP, USAGE, event, frame, text

WORDS = st.sampled_from(["a", "Blue ", "whales", "你好😀", 'qu"ote', "line\n", " ", "x" * 300])
PARTS = st.one_of(
    WORDS.map(text),
    st.just(b": ping\n\n"),
    st.just(text("odd").replace(b"data: ", b"data:")),
    st.just(text("crlf").replace(b"\n", b"\r\n")),
    st.just(event({"reasoning_content": "hm"})),
    st.just(text("changed", model="other")),
)
ERROR = frame({"error": {"message": "broke", "type": "server_error", "code": 500}})
ENDS = st.sampled_from([STOP + USAGE + DONE, STOP + DONE, STOP, DONE, ERROR, b""])


PATIENCE_S = 2.0


class StreamPath(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.path = Path()
        self.answer = b""
        self.num_sent = 0
        self.closed = False
        self.begun = False
        self.left = False
        self.died = False

    def run(self, what: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(what, PATIENCE_S))

    @initialize(parts=st.lists(PARTS, max_size=8), end=ENDS, is_next=st.booleans())
    def start(self, parts: list[bytes], end: bytes, is_next: bool) -> None:
        self.path.is_next = is_next
        self.answer = ROLE + b"".join(parts) + end
        self.run(self.path.start())

    def turn(self) -> None:
        self.run(turns())

    # ---- the engine

    @precondition(lambda self: not self.begun)
    @rule()
    def answer_begins(self) -> None:
        self.begun = True
        self.path.head()

    @precondition(lambda self: self.begun and not self.closed)
    @rule(share=st.floats(0.0, 1.0), ends=st.booleans(), turned=st.booleans())
    def engine_sends(self, share: float, ends: bool, turned: bool) -> None:
        rest = self.answer[self.num_sent :]
        data = rest[: max(1, round(share * len(rest)))]
        self.num_sent += len(data)
        self.closed = ends and self.num_sent == len(self.answer)
        self.path.arrive(data, ends=self.closed)
        if turned:
            self.turn()

    @precondition(lambda self: not self.closed)
    @rule()
    def engine_dies(self) -> None:
        self.closed = self.died = True
        self.path.die()

    # ---- the client

    @precondition(lambda self: not self.path.wire.write_paused)
    @rule()
    def client_is_slow(self) -> None:
        self.path.wire.write_paused = True

    @rule()
    def client_reads_on(self) -> None:
        self.path.wire.read_on()

    @precondition(lambda self: not self.left)
    @rule()
    def client_leaves(self) -> None:
        self.left = True
        self.path.leave()

    # ---- ourselves

    @rule()
    def preempted(self) -> None:
        if self.path.handle is not None and not self.begun:
            self.path.handle.preempt()
            self.turn()
            assert len(self.path.engine.exchanges) <= 50

    @rule()
    def time_passes(self) -> None:
        self.turn()

    @invariant()
    def what_the_client_has(self) -> None:
        if self.path.task is None:
            return
        expected, error = self.relayed(self.answer[: self.num_sent])
        body = self.path.wire.body
        if error is not None or self.died:
            plain, _, last = body.partition(b'data: {"error"')
            assert expected.startswith(plain)
            assert not last or plain == expected
        else:
            assert expected.startswith(body)

    def relayed(self, data: bytes) -> tuple[bytes, LLMRuntimeError | None]:
        """What one relay makes of it in one go, and how that ended."""
        reader = StreamRelay(options_of(self.path.request))
        try:
            out = reader.feed(data)
        except LLMRuntimeError as error:
            return b"", error
        if reader.failure is None and self.closed and not self.died and not reader.done:
            try:
                out += reader.eof()
            except LLMRuntimeError as error:
                return out, error
        return out, reader.failure

    # ---- the end

    def teardown(self) -> None:
        try:
            if self.path.task is not None:
                self.check_end()
        finally:
            self.run(self.path.aclose())
            self.loop.close()

    def check_end(self) -> None:
        path = self.path
        path.wire.read_on()
        self.turn()
        expected, error = self.relayed(self.answer[: self.num_sent])
        over = path.task is not None and path.task.done()
        body = path.wire.body
        if self.left:
            assert over
        elif error is None and not self.died:
            assert body == expected, "something was held back"
        if over:
            assert len(path.recorder.records) == 1
            assert path.engine.num_releases >= 1
            assert not any(replica.num_taken for replica in path.dispatcher.replicas.values())
            outcome = path.recorder.records[0].outcome
            if outcome is Outcome.COMPLETED:
                assert body.endswith(DONE)
                assert path.wire.complete
            elif not self.left:
                assert outcome is Outcome.FAILED
                assert DONE not in body
                if body:
                    assert b'data: {"error"' in body
                    assert path.wire.complete


TestStreamPath = StreamPath.TestCase
TestStreamPath.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
