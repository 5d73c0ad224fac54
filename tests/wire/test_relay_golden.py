from __future__ import annotations

import pytest

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.relay import StreamRelay
from tests.wire.scenarios import SCENARIOS, Scenario
from tests.wire.sdk import read_stream, validate_chunk


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("include_usage", [False, True])
class TestGolden:
    def output(self, scenario: Scenario, include_usage: bool) -> tuple[StreamRelay, bytes]:
        reader = StreamRelay(scenario.options(include_usage=include_usage))
        return reader, reader.feed(scenario.stream)

    def test_output_is_as_recorded(self, scenario: Scenario, include_usage: bool) -> None:
        reader, out = self.output(scenario, include_usage)
        suffix = "usage.out.sse" if include_usage else "out.sse"
        assert out == scenario.golden(suffix).read_bytes()
        assert reader.done
        assert reader.failure is None

    def test_every_event_satisfies_the_sdk(self, scenario: Scenario, include_usage: bool) -> None:
        _, out = self.output(scenario, include_usage)
        for chunk in read_stream(out):
            validate_chunk(scenario.kind, chunk)

    def test_the_envelope_is_constant_and_the_order_right(
        self, scenario: Scenario, include_usage: bool
    ) -> None:
        _, out = self.output(scenario, include_usage)
        events = read_stream(out)
        assert len({(e["id"], e["created"], e["object"], e["model"]) for e in events}) == 1
        assert events[0]["id"]
        assert events[0]["model"] == "alias"
        usage_event = events.pop() if include_usage else None
        if usage_event is not None:
            assert usage_event["choices"] == []
            usage = usage_event["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        for e in events:
            assert len(e["choices"]) == 1
            assert ("usage" in e) is include_usage
            assert e.get("usage") is None
            assert not e.keys() & {"timings", "prompt_progress"}
        for index in range(scenario.num_choices):
            mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            reasons = [choice["finish_reason"] for choice in mine]
            assert reasons[-1] in ("stop", "length", "tool_calls")
            assert reasons[:-1] == [None] * (len(mine) - 1)
            if scenario.kind is EndpointKind.CHAT:
                roles = [choice["delta"].get("role") for choice in mine]
                assert roles == ["assistant"] + [None] * (len(mine) - 1)


def test_usage_of_choices_adds_up_and_prompts_count_once() -> None:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    expected = {
        "llama_chat": Usage(42, 8, 0),
        "llama_chat_n2": Usage(33, 8, 24),
        "llama_completion_2x2": Usage(8, 12, 2),
        "vllm_chat": Usage(9, 6, 0),
        "sloppy_chat": Usage(3, 4, 0),
    }
    for name, usage in expected.items():
        reader = StreamRelay(by_name[name].options())
        reader.feed(by_name[name].stream)
        assert reader.usage == usage, name


def test_progress_is_exposed_and_not_forwarded() -> None:
    scenario = SCENARIOS[0]
    reader = StreamRelay(scenario.options())
    seen: list[tuple[int, int]] = []
    for raw in scenario.stream.split(b"\n\n")[:4]:
        assert reader.feed(raw + b"\n\n") == b""
        assert not reader.has_token
        assert reader.progress is not None
        seen.append((reader.progress.processed, reader.progress.total))
    assert seen == [(0, 42), (16, 42), (32, 42), (42, 42)]
