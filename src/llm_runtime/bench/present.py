"""A summary as lines of text: what a person reads after a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Summary = Mapping[str, Any]

LATENCY_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}


def lines(summary: Summary) -> Iterator[str]:
    """The figures, the doubts last, so that they are what stays on the screen."""
    yield (
        f"{summary['model_id']}: {summary['completed']} completed, {summary['failed']} failed"
        f" of {summary['num_prompts']} in {number(summary['duration'])} s"
    )
    yield (
        f"{number(summary['request_throughput'])} requests/s, "
        f"{number(summary['output_throughput'])} output tokens/s, "
        f"{number(summary['total_token_throughput'])} tokens/s"
    )
    yield from _goodput(summary)
    yield from _latencies(summary)
    yield from _waiting(summary)
    for title, key in (("errors", "errors"), ("codes", "error_codes")):
        if summary[key]:
            yield f"{title}: " + ", ".join(f"{name} {count}" for name, count in summary[key].items())
    yield from doubts(summary)


def doubts(summary: Summary) -> Iterator[str]:
    verdict = summary["verdict"]
    for warning in verdict["warnings"]:
        yield f"note: {warning}"
    for reason in verdict["reasons"]:
        yield f"{verdict['state'].upper()}: {reason}"


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, none lost above them; counts whole; a dash for undefined or withheld."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}{unit}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}{unit}"


def _latencies(summary: Summary) -> Iterator[str]:
    yield f"{'ms':<6}{'mean':>22}{'median':>10}{'p90':>10}{'p95':>10}{'p99':>10}"
    for name, title in LATENCY_NAMES.items():
        mean = number(summary[f"mean_{name}_ms"])
        if interval := summary["intervals_95"].get(f"mean_{name}_ms"):
            mean += f" [{number(interval[0])}, {number(interval[1])}]"
        rest = "".join(f"{number(summary[f'{p}_{name}_ms']):>10}" for p in ("median", "p90", "p95", "p99"))
        yield f"{title:<6}{mean:>22}{rest}"


def _goodput(summary: Summary) -> Iterator[str]:
    goodput = summary["goodput"]
    if goodput is not None:
        share = goodput["share_of_all"]
        percent = "-" if share is None else f"{share:.1%}"
        yield f"goodput {number(goodput['requests_per_s'])} requests/s, {percent} of all requests good"


def _waiting(summary: Summary) -> Iterator[str]:
    wait = summary["waiting"]["client_wait"]
    if summary["max_concurrency"] is not None and (wait["max_ms"] or 0) > 1:
        mean, most = number(wait["mean_ms"], " ms"), number(wait["max_ms"], " ms")
        yield f"of which waiting in the client: mean {mean}, max {most}"
    client = summary["client"]
    per_token = client["cpu_per_output_token_s"]
    lag = client["schedule_lag_p99_s"]
    yield (
        f"client: {number(client['cpu_s'])} s of CPU, "
        f"{number(None if per_token is None else 1e6 * per_token)} us per token, "
        f"schedule lag p99 {number(None if lag is None else 1e3 * lag)} ms"
    )


def comparison_lines(body: Mapping[str, Any]) -> Iterator[str]:
    """Of `compare.as_json`."""
    yield f"{body['num_rounds']} rounds, {body['num_used']} fit for use; ratios are the second by the first"
    for figure, ratio in body["figures"].items():
        interval = ratio["interval"]
        bounds = f"[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        yield f"{figure:<22}{ratio['mean']:>8.3f}  {bounds:<18}{ratio['finding']}"
    for each in body["rounds"]:
        for name in ("a", "b"):
            for doubt in each[name]["verdict"]["reasons"]:
                yield f"round with seed {each['seed']}, {name.upper()}: {doubt}"


def sweep_lines(body: Mapping[str, Any]) -> Iterator[str]:
    """Of `sweep.as_json`."""
    names = {"requests/s": "request_throughput", "tokens/s": "output_throughput"}
    names |= {"TTFT mean": "mean_ttft_ms", "p95": "p95_ttft_ms", "ITL mean": "mean_itl_ms"}
    names |= {"E2E mean": "mean_e2el_ms", "E2E p95": "p95_e2el_ms", "failed": "failed"}
    yield f"{body['parameter']:>12}" + "".join(f"{name:>12}" for name in names)
    settings: Mapping[str, str] = {}
    for point in body["points"]:
        if point["server"] != settings:
            settings = point["server"]
            yield ", ".join(f"{name} = {value}" for name, value in settings.items())
        summary = point["summary"]
        row = "".join(f"{number(summary[key]):>12}" for key in names.values())
        yield f"{point['level']:>12g}{row}"
        yield from doubts(summary)


def checked_lines(result: Any, checked: Any) -> Iterator[str]:
    """Figures without a bar first. result: scenario.Result; checked: what `scenario.check` returns."""
    barred = {each.bar.figure for each in checked}
    for name, figure in result.figures.items():
        if name not in barred:
            yield f"{name:<36}{number(figure):>10}"
    for each in checked:
        bar = f"{each.bar.relation} {each.bar.value:g}"
        yield f"{each.bar.figure:<36}{number(each.figure):>10}  {bar:<12}{'ok' if each.met else 'MISSED'}"
