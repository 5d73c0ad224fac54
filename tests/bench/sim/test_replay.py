"""Traces as asks: unscaled, and as several services at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llm_runtime.bench.sim.replay import ask_of, copies, turned
from llm_runtime.bench.trace_data import entries_of
from llm_runtime.bench.traces import TraceEntry
from llm_runtime.core.errors import ConfigError

ENTRIES = [TraceEntry(0.0, 100, 5, (1, 2), 64), TraceEntry(4.0, 30, 0), TraceEntry(9.0, 7, 3, (1,), 64)]


def test_a_single_copy_is_the_trace() -> None:
    asks = list(copies(ENTRIES, 1, 0))
    assert [(a.number, a.at_s, a.prompt_tokens, a.output_tokens) for a in asks] == [
        (0, 0.0, 100, 5), (1, 4.0, 30, 1), (2, 9.0, 7, 3),
    ]  # fmt: skip
    assert [a.block_ids for a in asks] == [(1, 2), (), (1,)]


def test_turning_keeps_every_request_within_the_period() -> None:
    shifted = turned(ENTRIES, 3.0, 10.0)
    assert [(at, entry.input_tokens) for at, entry in shifted] == [(2.0, 7), (3.0, 100), (7.0, 30)]


def test_copies_are_services_of_their_own() -> None:
    asks = list(copies(ENTRIES, 4, 1))
    assert len(asks) == 12
    assert [a.number for a in asks] == list(range(12))
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(asks))
    assert all(0.0 <= a.at_s <= 9.001 for a in asks)
    by_tenant = {tenant: [a for a in asks if a.tenant == tenant] for tenant in {a.tenant for a in asks}}
    assert {len(own) for own in by_tenant.values()} == {3}
    blocks = [{block for a in own for block in a.block_ids} for own in by_tenant.values()]
    assert all(not one & other for one, other in pairwise(blocks))
    for own in by_tenant.values():
        first = next(a for a in own if a.prompt_tokens == 100)
        last = next(a for a in own if a.prompt_tokens == 7)
        assert first.block_ids[0] == last.block_ids[0]
    assert [a.at_s for a in asks] == [a.at_s for a in copies(ENTRIES, 4, 1)]
    assert [a.at_s for a in asks] != [a.at_s for a in copies(ENTRIES, 4, 2)]


def test_an_empty_prompt_and_an_empty_answer_count_one_token() -> None:
    ask = ask_of(TraceEntry(0.0, 0, 0), 0, 0.0)
    assert (ask.prompt_tokens, ask.output_tokens, ask.max_tokens) == (1, 1, 1)


def test_a_trace_that_is_not_there_is_told_by_name_and_where_it_comes_from() -> None:
    with pytest.raises(ConfigError, match=r"azure_nothing\.csv is not there.*benchmarks/traces.*Azure"):
        entries_of("azure_nothing.csv")
