"""Records and results as strict JSON, there and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

from llm_runtime.bench.config import Slo
from llm_runtime.bench.files import records_path, write_json, write_result
from llm_runtime.bench.records import RequestRecord, Status, decode, encode, read_records
from llm_runtime.bench.summary import finite, summarise
from tests.bench.builders import failed, whole
from tests.bench.loads import QUICK, measure, with_members

KNOWN = """
date backend endpoint_type model_id num_prompts request_rate burstiness max_concurrency duration
completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests
"""


def strict(text: str | bytes) -> Any:
    """What a parser makes of it that takes RFC 8259 at its word."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("record", [whole(), failed(), whole(status=Status.INTERRUPTED, started_at=None)])
def test_a_record_survives_its_line(record: RequestRecord) -> None:
    line = encode(record)
    assert line.endswith(b"\n")
    assert decode(line) == record
    assert strict(line)["status"] == record.status.value


def test_a_line_is_rounded_to_the_microsecond_and_never_carries_what_json_has_not() -> None:
    line = strict(encode(whole(finished_at=math.inf, retry_after_s=math.nan, itls_s=(1 / 3,))))
    assert (line["finished_at"], line["retry_after_s"], line["itls_s"]) == (None, None, [0.333333])


def test_members_of_later_versions_are_ignored() -> None:
    members = strict(encode(whole()))
    assert decode(json.dumps({**members, "colour": "blue"}).encode()) == whole()


@pytest.mark.parametrize("line", ["{}", "[]", "3", '{"status":"completed"}', "{", '{"status":"odd"}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(encode(whole()) + line.encode() + b"\n")
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2"):
        read_records(path)


def test_finite_takes_out_what_json_has_no_number_for() -> None:
    assert finite({"a": (math.nan, 1.0), 3: {"b": -math.inf}}) == {"a": [None, 1.0], "3": {"b": None}}


@pytest.mark.parametrize(
    "script", [QUICK, with_members(QUICK, status=500), with_members(QUICK, num_tokens=0)]
)
async def test_a_result_is_strict_json_even_when_nothing_succeeded(tmp_path: Path, script: Any) -> None:
    measured = await measure(script, requests=1, slo=Slo(ttft_s=1.0))
    path = tmp_path / "deep" / "result.json"
    write_result(path, measured.summary, measured.result)
    body = strict(path.read_bytes())
    assert body["num_prompts"] == 1
    assert body["schema"] == "llm-runtime-bench/1"
    assert read_records(records_path(path))[0].number == 0


async def test_a_result_has_the_keys_that_plotting_scripts_know_and_explains_itself() -> None:
    summary = (await measure(slo=Slo(ttft_s=1.0))).summary
    known = KNOWN.split()
    known += [f"{figure}_{name}_ms" for figure in ("mean", "median", "std", "p90", "p95", "p99")
              for name in ("ttft", "tpot", "itl", "e2el")]  # fmt: skip
    assert set(known) <= set(summary)
    assert summary["settings"]["seed"] == 0
    assert summary["settings"]["salt"] == "s"
    assert summary["settings"]["traffic"][0]["output_tokens"] == "5"
    assert summary["server"]["before"]["version"] == {"version": "stub"}
    assert {"cpu", "python", "commit", "dirty", "gpus", "packages"} <= set(summary["environment"])
    assert summary["lengths"]["output_tokens"] == {"min": 5, "mean": 5.0, "median": 5, "max": 5}
    assert summary["client"]["cpu_s"] > 0


async def test_a_result_holds_no_secret(tmp_path: Path) -> None:
    target = {"api_key": "sesame", "headers": {"x-secret": "sesame"}}
    measured = await measure(target=target)
    assert measured.seen[0].headers[b"authorization"] == b"Bearer sesame"
    write_json(tmp_path / "r.json", measured.summary)
    text = (tmp_path / "r.json").read_text()
    assert "sesame" not in text
    assert "x-secret" in text
    assert "sesame" not in repr(measured.result.plan)


async def test_withheld_percentiles_are_null() -> None:
    summary = summarise((await measure(requests=120)).result)
    assert summary["p90_ttft_ms"] is not None
    assert (summary["p95_ttft_ms"], summary["p99_ttft_ms"]) == (None, None)
    assert "p99 from 1000" in summary["percentile_rule"]
    low, high = summary["intervals_95"]["mean_ttft_ms"]
    assert low <= summary["mean_ttft_ms"] <= high
