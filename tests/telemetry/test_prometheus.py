"""The exposition: golden files, strict parsers, the library's own encoder as oracle, promtool.

`UPDATE_GOLDEN=1 pytest tests/telemetry/test_prometheus.py` writes the golden files anew.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import parser as text_parser
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.registry import Collector

from llm_runtime import __version__
from llm_runtime.telemetry.families import Family, Sources, collect
from llm_runtime.telemetry.histogram import Histogram
from llm_runtime.telemetry.metrics import MetricsCollector
from llm_runtime.telemetry.prometheus import SERIES_PER_TURN, Format, PrometheusExporter, negotiate
from llm_runtime.telemetry.snapshot import json_snapshot
from tests.telemetry.builders import record, request, scenario

GOLDEN = Path(__file__).parent / "golden"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_SERVER = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def expose(accept: str, sources: Sources | None = None) -> str:
    exporter = PrometheusExporter(sources or scenario(), process_metrics=False)
    return exporter.render(accept)[0].decode()


def parsed(text: str, accept: str) -> dict[str, dict[tuple[Any, ...], float]]:
    """Family -> (sample name, labels) -> value, by the strict parser of the format."""
    parse = (
        openmetrics_parser.text_string_to_metric_families
        if accept == OPENMETRICS
        else text_parser.text_string_to_metric_families
    )
    families: dict[str, dict[tuple[Any, ...], float]] = {}
    for family in parse(text):
        assert family.name not in families
        samples = families.setdefault(family.name, {})
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = float(sample.value)
    return families


class LibraryCollector(Collector):
    """The same families as the library's own objects."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Any]:
        for family in self._families:
            kinds = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "histogram": HistogramMetricFamily,
            }
            metric = kinds[family.kind](family.name, family.help, labels=family.labels)
            for values, value in family.samples:
                if isinstance(value, Histogram):
                    total, buckets = 0, []
                    edges = [*(str(float(edge)) for edge in value.edges), "+Inf"]
                    for edge, count in zip(edges, value.counts, strict=True):
                        total += count
                        buckets.append((edge, total))
                    metric.add_metric(values, buckets, value.sum)
                else:
                    metric.add_metric(values, value)
            yield metric


@pytest.mark.parametrize(
    ("accept", "name"), [("text/plain", "metrics.txt"), (OPENMETRICS, "metrics.openmetrics")]
)
def test_golden(accept: str, name: str) -> None:
    text = expose(accept).replace(f'version="{__version__}"', 'version="X"')
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_strict_parser_reads_what_the_library_itself_would_have_written(accept: str) -> None:
    sources = scenario()
    registry = CollectorRegistry()
    registry.register(LibraryCollector(collect(sources)))
    encode = openmetrics.generate_latest if accept == OPENMETRICS else generate_latest
    ours = parsed(expose(accept, sources), accept)
    assert ours == parsed(encode(registry).decode(), accept)
    assert len(ours) > 30


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_an_empty_server_exposes_valid_text(accept: str) -> None:
    text = expose(accept, Sources(MetricsCollector([])))
    assert parsed(text, accept)["llm_runtime_requests_active"] == {("llm_runtime_requests_active", ()): 0.0}


def test_f50_d_help_and_type_come_once_and_openmetrics_ends() -> None:
    for accept in ("text/plain", OPENMETRICS):
        text = PrometheusExporter(scenario()).render(accept)[0].decode()
        titles = re.findall(r"^# (?:HELP|TYPE) (\S+)", text, re.MULTILINE)
        assert len(titles) == 2 * len(set(titles))
        assert text.endswith("# EOF\n") == (accept == OPENMETRICS)
        assert text.count("# EOF") == (accept == OPENMETRICS)


def test_the_process_tells_about_itself() -> None:
    families = parsed(PrometheusExporter(scenario()).render("text/plain")[0].decode(), "text/plain")
    assert families["process_resident_memory_bytes"][("process_resident_memory_bytes", ())] > 1e6
    assert families["process_cpu_seconds"][("process_cpu_seconds_total", ())] > 0


def test_f50_d_the_inf_bucket_is_the_count_and_buckets_never_fall() -> None:
    for family in text_parser.text_string_to_metric_families(expose("text/plain")):
        if family.type != "histogram":
            continue
        series: dict[tuple[Any, ...], list[float]] = {}
        counts: dict[tuple[Any, ...], float] = {}
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            if sample.name.endswith("_bucket"):
                series.setdefault(tuple(labels.items()), []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[tuple(labels.items())] = sample.value
        assert counts
        for key, values in series.items():
            assert values == sorted(values)
            assert values[-1] == counts[key]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt: prometheus)")
def test_promtool_finds_nothing_to_complain_of() -> None:
    text = PrometheusExporter(scenario()).render("text/plain")[0]
    command = ["promtool", "check", "metrics"]
    result = subprocess.run(command, input=text, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_f46_label_values_that_break_text_come_back_whole() -> None:
    odd = ['a"b', "back\\slash", "line\nfeed", "emoji 😀", "\\n", '\\"', "x" * 10_000]
    metrics = MetricsCollector(odd)
    for number, model in enumerate(odd):
        metrics.accepted(request(str(number), model=model))
    for accept in ("text/plain", OPENMETRICS):
        samples = parsed(expose(accept, Sources(metrics)), accept)["llm_runtime_requests_accepted"]
        assert sorted(dict(labels)["model"] for _, labels in samples) == sorted(odd)


def test_a_lone_surrogate_in_a_configured_name_does_not_break_the_scrape() -> None:
    metrics = MetricsCollector(["bad\ud800name"])
    metrics.accepted(request(model="bad\ud800name"))
    samples = parsed(expose("text/plain", Sources(metrics)), "text/plain")["llm_runtime_requests_accepted"]
    assert [dict(labels)["model"] for _, labels in samples] == ["bad?name"]


def test_text_and_json_tell_the_same() -> None:
    sources = scenario()
    families = parsed(expose("text/plain", sources), "text/plain")
    snapshot = json_snapshot(sources)

    def total(name: str, suffix: str = "_total", **labels: str) -> float:
        return sum(
            value
            for (sample, of), value in families[f"llm_runtime_{name}"].items()
            if sample.endswith(suffix) and labels.items() <= dict(of).items()
        )

    for outcome in ("completed", "failed", "rejected", "evicted", "cancelled", "timed_out"):
        assert total("requests", outcome=outcome) == snapshot[f"{outcome}_count"]
    assert total("rejections") == snapshot["rejected_count"]
    assert total("completion_tokens") == snapshot["generated_tokens_total"]
    assert total("requests_active", "") == snapshot["active_requests"]
    assert total("requests_waiting", "requests_waiting") == snapshot["queue_size"]
    assert total("requests_running", "requests_running") == snapshot["num_running"]
    ttft = total("time_to_first_token_seconds", "_sum") / total("time_to_first_token_seconds", "_count")
    assert ttft == pytest.approx(snapshot["ttft_avg_s"])
    assert (
        total("gpu_memory_used_bytes", "bytes", gpu="0")
        == snapshot["gpu"]["gpus"][0]["memory_used_mb"] * 2**20
    )


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, None),
        ("", None),
        ("*/*", None),
        ("application/json", None),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", None),
        ("text/plain", Format.TEXT),
        ("TEXT/PLAIN; version=0.0.4", Format.TEXT),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text; version=2.0.0, text/plain;q=0.2", Format.TEXT),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", Format.TEXT),
        (
            "application/openmetrics-text;q=0.9, application/openmetrics-text;version=0.0.1;q=0.1, "
            "text/plain;q=0.5",
            Format.OPENMETRICS,
        ),
        ("application/openmetrics-text;q=0, text/plain;q=0", None),
        ("text/plain;q=oops", None),
        ("text/plain;;;=,,", Format.TEXT),
        (PROMETHEUS_SERVER, Format.OPENMETRICS),
    ],
)
def test_negotiation(accept: str | None, expected: Format | None) -> None:
    assert negotiate(accept) is expected


def test_content_types_are_those_of_the_formats() -> None:
    exporter = PrometheusExporter(scenario(), process_metrics=False)
    assert exporter.render(None)[1] == "text/plain; version=0.0.4; charset=utf-8"
    assert (
        exporter.render(PROMETHEUS_SERVER)[1] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )


async def test_rendering_in_turns_gives_the_same_and_lets_others_run() -> None:
    metrics = MetricsCollector([f"m{number}" for number in range(3 * SERIES_PER_TURN)])
    for number in range(3 * SERIES_PER_TURN):
        metrics.settled(record(request(str(number), model=f"m{number}")))
    exporter = PrometheusExporter(Sources(metrics), process_metrics=False)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    body, content_type = await exporter.render_in_turns(OPENMETRICS)
    task.cancel()
    assert (body, content_type) == exporter.render(OPENMETRICS)
    assert turns >= 3 * 7


async def test_what_happens_between_turns_breaks_nothing() -> None:
    """Series appear and counts rise while a scrape is under way: the text still parses."""
    metrics = MetricsCollector([f"m{number}" for number in range(200)])
    for number in range(60):
        metrics.settled(record(request(f"a{number}", model=f"m{number}")))
    exporter = PrometheusExporter(Sources(metrics), process_metrics=False)

    async def traffic() -> None:
        number = 0
        while True:
            number += 1
            metrics.settled(record(request(f"b{number}", model=f"m{number % 200}")))
            await asyncio.sleep(0)

    task = asyncio.create_task(traffic())
    body, _ = await exporter.render_in_turns(OPENMETRICS)
    task.cancel()
    families = parsed(body.decode(), OPENMETRICS)
    assert len(families["llm_runtime_request_duration_seconds"]) >= 60


def test_names_follow_the_conventions_without_promtool_too() -> None:
    for family in collect(scenario()):
        assert re.fullmatch(r"llm_runtime_[a-z][a-z0-9_]*", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert family.help.endswith(".")
        assert "\n" not in family.help
        assert "\\" not in family.help
        assert not {"le", "quantile"} & set(family.labels)
