"""One page out of result files: what was measured, how sure it is, and with what it was made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from llm_runtime.bench import compare, metrics, plots, scenario, stats, summary, sweep
from llm_runtime.bench.files import read_records_of
from llm_runtime.bench.page import Heading, Paragraph, Part, Picture, Table, as_html, as_markdown
from llm_runtime.bench.present import LATENCY_NAMES, doubts, number
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.sweep_tables import gains, rows_of
from llm_runtime.core.errors import ConfigError

WITHOUT_PLOTS = "no curves: matplotlib is missing (pip install 'llm-runtime[bench]')"
QUANTILES = ("mean", "median", "p90", "p95", "p99")

SCHEMAS = (summary.SCHEMA, sweep.SCHEMA, compare.SCHEMA, scenario.SCHEMA)
COLUMNS: Mapping[str, tuple[str, float]] = {
    "running": ("requests running", 1.0),
    "waiting": ("requests waiting", 1.0),
    "queue_wait_s": ("queue wait (ms)", 1e3),
    "engine_wait_s": ("wait inside vLLM (ms)", 1e3),
    "batch_size": ("batch size of a static engine", 1.0),
    "batch_tokens": ("tokens of an engine step", 1.0),
    "kv_usage": ("KV cache in use (%)", 100.0),
    "gpu_utilization": ("GPU busy (%)", 100.0),
    "gpu_memory_bytes": ("GPU memory (MiB)", 1.0 / (1024.0 * 1024.0)),
}

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A result file by name; records: empty where they were not kept."""

    name: str
    body: Mapping[str, Any]
    records: Sequence[RequestRecord]


def write_report(paths: Sequence[Path], output: Path, title: str) -> list[str]:
    """Writes HTML or, for a name ending in .md, Markdown; returns what a reader should be told.

    Raises ConfigError for a file that is no result.
    """
    parts = list(report([_load(path) for path in paths]))
    render = as_markdown if output.suffix.lower() in (".md", ".markdown") else as_html
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(title, parts), encoding="utf-8")
    return [] if plots.available() else [WITHOUT_PLOTS]


def report(results: Sequence[Loaded]) -> Iterator[Part]:
    """Runs together first, then each sweep and comparison, then how everything was made."""
    by_schema: defaultdict[str, list[Loaded]] = defaultdict(list)
    for result in results:
        by_schema[result.body["schema"]].append(result)
    runs = by_schema[summary.SCHEMA]
    if runs:
        yield Heading("Runs")
        yield from _figures({run.name: run.body for run in runs})
        yield from _curves(runs)
    for swept in by_schema[sweep.SCHEMA]:
        yield Heading(f"Sweep {swept.name}")
        yield from _sweep(swept.body)
    for compared in by_schema[compare.SCHEMA]:
        yield Heading(f"Comparison {compared.name}")
        yield from _comparison(compared.body)
    for claimed in by_schema[scenario.SCHEMA]:
        yield Heading(f"Scenario {claimed.name}")
        yield from _scenario(claimed.body)
    yield Heading("How these were made")
    for result in results:
        yield from _origin(result)


def _figures(summaries: Mapping[str, Summary]) -> Iterator[Part]:
    header = [
        "run",
        "completed",
        "failed",
        "requests/s",
        "output tokens/s",
        "goodput/s",
        "good of all",
        "state",
    ]
    yield Table(header, [_rates(name, each) for name, each in summaries.items()])
    for key, label in LATENCY_NAMES.items():
        rows = [[name, *_quantiles(each, key)] for name, each in summaries.items()]
        yield Table([f"{label} (ms)", *QUANTILES, "95 % interval of the mean"], rows)
    yield Paragraph(
        f"Latencies count from the scheduled arrival. A dash is undefined or withheld: {stats.RULE}."
    )
    if rows := [row for name, each in summaries.items() for row in _told_by_server(name, each)]:
        yield Table(["the server of itself", "figure", "mean", "highest", "samples"], rows)
    for name, each in summaries.items():
        for doubt in doubts(each):
            yield Paragraph(f"{name}: {doubt}")


def _told_by_server(name: str, each: Summary) -> Iterator[list[str]]:
    """Means over the whole load by the server's counters, and what was seen at the samples."""
    for column, value in (each.get("server_means") or {}).items():
        label, scale = COLUMNS.get(column, (column, 1.0))
        yield [name, label, number(scale * value), "-", "all"]
    for column, found in (each.get("sampled") or {}).items():
        if column in (each.get("server_means") or {}):
            continue
        label, scale = COLUMNS.get(column, (column, 1.0))
        values = (number(scale * found[key]) for key in ("mean", "max"))
        yield [name, label, *values, number(found["num_samples"])]


def _scenario(body: Mapping[str, Any]) -> Iterator[Part]:
    quick = " A quick run: its bars are those a short run can be held to." if body["quick"] else ""
    yield Paragraph(f"{body['question']}{quick}")
    bars = {bar["figure"]: bar for bar in body["bars"]}
    rows = []
    for name, figure in body["figures"].items():
        bar = bars.get(name)
        wanted = f"{bar['relation']} {bar['value']:g}" if bar else ""
        rows.append([name, number(figure), wanted, ("met" if bar["met"] else "MISSED") if bar else ""])
    yield Table(["figure", "value", "bar", ""], rows)


def _rates(name: str, each: Summary) -> list[str]:
    goodput = each["goodput"] or {}
    share = goodput.get("share_of_all")
    keys = ("completed", "failed", "request_throughput", "output_throughput", "request_goodput")
    good = "-" if share is None else f"{share:.1%}"
    return [name, *(number(each[key]) for key in keys), good, each["verdict"]["state"]]


def _quantiles(each: Summary, key: str) -> list[str]:
    interval = each["intervals_95"].get(f"mean_{key}_ms")
    bounds = f"{number(interval[0])} to {number(interval[1])}" if interval else "-"
    return [*(number(each[f"{quantile}_{key}_ms"]) for quantile in QUANTILES), bounds]


def _curves(runs: Sequence[Loaded]) -> Iterator[Part]:
    if not plots.available():
        yield Paragraph(WITHOUT_PLOTS)
        return
    recorded = {run.name: metrics.completed(metrics.measured(run.records)) for run in runs}
    ttft = {name: metrics.values(records, metrics.ttft_s) for name, records in recorded.items()}
    gaps = {name: [gap for r in records for gap in r.itls_s] for name, records in recorded.items()}
    for label, series in (("TTFT", ttft), ("ITL", gaps)):
        if known := {name: values for name, values in series.items() if values}:
            yield Picture(plots.shares(known, label), f"Distribution of {label}")
    for run in runs:
        if run.records or run.body["samples"]:
            picture = plots.timeline(run.records, run.body["samples"])
            yield Picture(picture, f"{run.name}: requests over time")


def _sweep(body: Mapping[str, Any]) -> Iterator[Part]:
    names = {f"{_settings(point)}{point['level']:g}, repeat {point['repeat'] + 1}": point["summary"]
             for point in body["points"]}  # fmt: skip
    yield from _figures(names)
    rows = rows_of(body)
    changes = [
        [
            row.name,
            f"{row.level:g}",
            *("-" if ratio is None else f"{ratio - 1:+.1%}" for ratio in by.values()),
        ]
        for row, by in gains(rows)
    ]
    if changes:
        header = ["setting", body["parameter"], "output tokens/s", "mean TTFT", "mean E2E", "p95 E2E"]
        yield Paragraph(f"Against {rows[0].name}, at the same level:")
        yield Table(header, changes)
    if plots.available() and rows:
        picture, quantile = throughput_curve(body)
        yield Picture(picture, f"Throughput against {quantile} E2E, by {body['parameter']}")
        picture, quantile = throughput_curve(body, "ttft")
        yield Picture(picture, f"Throughput against {quantile} TTFT, by {body['parameter']}")


def throughput_curve(body: Mapping[str, Any], latency: str = "e2el") -> tuple[bytes, str]:
    """The picture of a sweep, a curve for each setting and repeat, and the quantile it shows: p95, or the
    median where too few requests were sent for a p95, which would leave the curve empty."""
    series: defaultdict[str, list[Summary]] = defaultdict(list)
    for point in body["points"]:
        series[f"{_settings(point)}repeat {point['repeat'] + 1}"].append(point["summary"])
    all_known = all(point["summary"][f"p95_{latency}_ms"] is not None for point in body["points"])
    quantile = "p95" if all_known else "median"
    label = f"{quantile} {LATENCY_NAMES[latency]}"
    return plots.throughput_against(series, f"{quantile}_{latency}_ms", label), quantile


def _settings(point: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {value}, " for name, value in point["server"].items())


def _comparison(body: Mapping[str, Any]) -> Iterator[Part]:
    rows = []
    for name, ratio in body["figures"].items():
        interval = ratio["interval"]
        bounds = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-"
        rows.append([name, f"{ratio['mean']:.3f}", bounds, ratio["finding"]])
    yield Table(["figure", "second by first", "95 % interval", "the second is"], rows)
    yield Paragraph(f"{body['num_used']} of {body['num_rounds']} rounds were fit for use.")


def _origin(result: Loaded) -> Iterator[Part]:
    body = result.body
    source = body
    if body["schema"] == sweep.SCHEMA:
        source = body["points"][0]["summary"] if body["points"] else {}
    elif body["schema"] == compare.SCHEMA:
        source = body["a"] or {}
    definition = body.get("definition") or {}
    environment, settings = source.get("environment") or {}, source.get("settings") or {}
    facts = {
        "command": body.get("command"),
        "model": source.get("model_id"),
        "target": (settings.get("target") or {}).get("url"),
        "server": _told((source.get("server") or {}).get("before")),
        "beside it": _beside((source.get("server") or {}).get("beside")),
        "seed and salt": f"{settings['seed']}, {settings['salt']}" if settings else None,
        "definition": definition.get("commit"),
        "commit": f"{environment.get('commit')}{' with changes' if environment.get('dirty') else ''}",
        "machine": f"{environment.get('cpu')}, {environment.get('num_cores')} cores",
        "GPUs": ", ".join(gpu["name"] for gpu in environment.get("gpus", ())) or None,
        "system": f"{environment.get('system')}, Python {environment.get('python')}",
    }
    yield Heading(result.name, 3)
    yield Table(["fact", "value"], [[name, str(value)] for name, value in facts.items() if value])


def _told(server: Mapping[str, Any] | None) -> str | None:
    version = (server or {}).get("version")
    return str(version.get("version", version)) if isinstance(version, dict) else None


def _beside(versions: Mapping[str, Any] | None) -> str | None:
    told = [
        f"{place}: {_told({'version': version})}" for place, version in (versions or {}).items() if version
    ]
    return ", ".join(told) or None


def _load(path: Path) -> Loaded:
    try:
        body = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(body, dict) or body.get("schema") not in SCHEMAS:
        raise ConfigError(f"{path} is no result of bench run, replay, sweep, compare or a scenario")
    records = read_records_of(path) if body["schema"] == summary.SCHEMA else []
    return Loaded(path.stem, body, records)
