"""Both trace formats, in the shapes they come in, and what scaling does to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_runtime.bench.config import TraceFile, TrafficClass
from llm_runtime.bench.trace_data import FOLDER
from llm_runtime.bench.traces import TraceEntry, load_trace, parse_trace, scale
from llm_runtime.bench.workload import TraceSessions
from llm_runtime.core.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9799600,4808,10
2023-11-17 00:00:00.0319600,3180,8
2023-11-17 00:00:28.4590290,1555,19
"""
AZURE_WITH_ZONE = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.500000+00:00,10,1
2024-05-10 00:00:01+00:00,20,2
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [0, 9]}
{"timestamp": 3052, "input_length": 1100, "output_length": 26, "hash_ids": [0, 1, 2]}
"""
RECORDED = Path(__file__).parents[2] / FOLDER


def test_azure_instants_count_from_the_first_request_to_the_microsecond() -> None:
    entries = parse_trace(AZURE)
    assert [entry.at_s for entry in entries] == pytest.approx([0.0, 0.052, 28.479069], abs=1e-6)
    assert [(entry.input_tokens, entry.output_tokens) for entry in entries] == [
        (4808, 10), (3180, 8), (1555, 19),
    ]  # fmt: skip


def test_azure_with_time_zones_and_without_fractions() -> None:
    assert [entry.at_s for entry in parse_trace(AZURE_WITH_ZONE)] == [0.0, 0.5]


def test_mooncake_is_sorted_and_keeps_its_blocks() -> None:
    assert parse_trace(MOONCAKE) == [
        TraceEntry(0.0, 1100, 26, (0, 1, 2), 512),
        TraceEntry(24.43, 600, 52, (0, 9), 512),
    ]


def test_scaling_multiplies_instants_lengths_and_blocks() -> None:
    trace = TraceFile("x", time_scale=0.5, length_scale=0.25, max_output_tokens=10)
    assert scale(parse_trace(MOONCAKE), trace, 0) == [
        TraceEntry(0.0, 275, 6, (0, 1, 2), 128),
        TraceEntry(12.215, 150, 10, (0, 9), 128),
    ]


def test_a_window_is_cut_before_scaling_and_starts_at_zero() -> None:
    entries = [TraceEntry(float(at), 10, 1) for at in range(10)]
    cut = scale(entries, TraceFile("x", time_scale=2.0, start_s=4.0, duration_s=3.0), 0)
    assert [entry.at_s for entry in cut] == [0.0, 2.0, 4.0]


def test_thinning_keeps_the_share_and_the_same_requests_in_every_window() -> None:
    entries = [TraceEntry(float(at), at + 1, 1) for at in range(4000)]
    kept = scale(entries, TraceFile("x", keep=0.25), 5)
    assert len(kept) == pytest.approx(1000, rel=0.1)
    assert kept != scale(entries, TraceFile("x", keep=0.25), 6)
    later = scale(entries, TraceFile("x", keep=0.25, start_s=1000.0), 5)
    assert [e.input_tokens for e in later] == [e.input_tokens for e in kept if e.at_s >= 1000]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "no column TIMESTAMP"),
        ('{"timestamp": 1}\n', "input_length"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n", "no instant"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_trace(TraceFile(str(path)), 0)


def test_a_trace_becomes_sessions_that_are_due() -> None:
    sessions = TraceSessions(parse_trace(MOONCAKE), TrafficClass(name="trace"))
    second = sessions.session(1)
    assert second is not None
    assert (second.due_s, second.traffic.name) == (24.43, "trace")
    assert second.turns[0].block_ids == (0, 9)
    assert sessions.session(2) is None


@pytest.mark.parametrize(
    ("name", "number", "rate", "input_median"),
    [
        ("azure_llm_2023_conv.csv", 19366, 5.5, 1020),
        ("azure_llm_2023_code.csv", 8819, 2.6, 1469),
        ("mooncake_conversation.jsonl", 12031, 3.4, 6909),
    ],
)
def test_the_published_traces_are_read_in_full(
    name: str, number: int, rate: float, input_median: int
) -> None:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the trace {name} is not on this machine")
    entries = load_trace(TraceFile(str(path)), 0)
    assert len(entries) == number
    assert number / entries[-1].at_s == pytest.approx(rate, rel=0.03)
    assert sorted(e.input_tokens for e in entries)[number // 2] == pytest.approx(input_median, rel=0.01)
