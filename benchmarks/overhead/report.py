"""Results as JSON that describes itself, and as Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.overhead.claims import Verdict
from benchmarks.overhead.participants import OURS, Participant
from benchmarks.overhead.plan import METRICS, Metric, Plan
from benchmarks.overhead.ratios import Estimate
from benchmarks.overhead.summary import Summary
from benchmarks.overhead.turn import Turn

SCHEMA = "llm-runtime/gateway-overhead/1"


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a report says. started_at: Unix seconds. environment: of `bench.facts`. interpreters: by
    participant, of ours."""

    command: str
    started_at: float
    duration_s: float
    environment: Mapping[str, Any]
    plan: Plan
    participants: Sequence[Participant]
    skipped: Mapping[str, str]
    turns: Sequence[Turn]
    summary: Summary
    verdicts: Sequence[Verdict]
    interpreters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def as_json(run: Run) -> dict[str, Any]:
    """Strictly JSON; single TTFTs are left out, their quantiles stay."""
    summary = run.summary
    return {
        "schema": SCHEMA,
        "command": run.command,
        "started_at": run.started_at,
        "duration_s": round(run.duration_s, 1),
        "environment": dict(run.environment),
        "plan": asdict(run.plan),
        "participants": [
            {
                "name": one.name,
                "about": one.about,
                "version": one.version,
                "load_share": one.load_share,
                "interpreter": run.interpreters.get(one.name),
            }
            for one in run.participants
        ],
        "not_measured": dict(run.skipped),
        "metrics": {metric.name: metric.title for metric in METRICS},
        "medians": _estimates(summary.estimates),
        "ours_against": _estimates(summary.comparisons),
        "claims": [_verdict(verdict) for verdict in run.verdicts],
        "foreign_cpu_share": summary.foreign_share,
        "disturbed": summary.disturbed,
        "problems": list(summary.problems),
        "turns": [_turn(turn) for turn in run.turns],
    }


def as_markdown(run: Run) -> str:
    summary = run.summary
    environment = run.environment
    lines = [
        f"`{run.command}`, {run.plan.rounds} rounds, commit {str(environment.get('commit'))[:10]}"
        f"{' with changes' if environment.get('dirty') else ''}, {environment.get('cpu')}, "
        f"{environment.get('num_usable_cores')} cores, Python {environment.get('python')}",
        "",
        *_table(run),
    ]
    if summary.comparisons:
        lines += ["", f"{OURS} against each, round by round (ratio, or difference in ms):", "", *_ratios(run)]
    lines += ["", *_verdict_lines(run.verdicts)]
    if summary.disturbed:
        lines += ["", f"**Disturbed**: other programs used {summary.foreign_share:.2f} of a core."]
    lines += [f"- {name} ran on {_shown_python(told)}" for name, told in run.interpreters.items()]
    lines += [f"- not measured: {name}: {why}" for name, why in run.skipped.items()]
    lines += [f"- {problem}" for problem in summary.problems]
    return "\n".join(lines) + "\n"


def _shown_python(told: Mapping[str, Any]) -> str:
    how = {True: "optimised", False: "not optimised", None: "of unknown build"}[told["python_optimised"]]
    return f"Python {told['python']}, {how}"


def _table(run: Run) -> list[str]:
    columns = _columns(run.summary.estimates)
    rows = [["", *(metric.title for metric in columns)]]
    for one in run.participants:
        found = run.summary.estimates.get(one.name, {})
        if found:
            version = f" {one.version}" if one.version else ""
            rows.append([f"{one.name}{version}",
                         *(shown(found.get(metric.name), metric.digits) for metric in columns)])  # fmt: skip
    return _markdown(rows)


def _ratios(run: Run) -> list[str]:
    columns = _columns(run.summary.comparisons)
    rows = [["", *(metric.title for metric in columns)]]
    for name, found in run.summary.comparisons.items():
        if found:
            rows.append([name, *(shown(found.get(metric.name), 2) for metric in columns)])
    return _markdown(rows)


def _columns(table: Mapping[str, Mapping[str, Estimate]]) -> list[Metric]:
    """Those that anybody has."""
    return [metric for metric in METRICS if any(metric.name in found for found in table.values())]


def _markdown(rows: list[list[str]]) -> list[str]:
    head, *body = rows
    lines = [head, ["---", *("---:" for _ in head[1:])], *body]
    return ["| " + " | ".join(line) + " |" for line in lines]


def shown(found: Estimate | None, digits: int) -> str:
    """Median with its interval; a dash for nothing."""
    if found is None:
        return "-"
    text = f"{found.median:.{digits}f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return text


def _verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        claim = verdict.claim
        if verdict.met is None:
            continue
        word = "MISSED" if not verdict.met else "met" if verdict.sure else "met, not surely"
        goal = f", goal {claim.goal:.3g}" if claim.goal is not None else ""
        found = shown(verdict.found, 3)
        lines.append(f"- {word}: {claim.text}: {found} {claim.unit} (bar {claim.bar:.3g}{goal})")
    if unknown := sum(verdict.met is None for verdict in verdicts):
        lines.append(f"- not measured: {unknown} of {len(verdicts)} claims")
    return lines


def _estimates(table: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    return {
        name: {metric: _rounded(asdict(found)) for metric, found in columns.items()}
        for name, columns in table.items()
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    claim, found = verdict.claim, verdict.found
    return {
        "group": claim.group,
        "text": claim.text,
        "unit": claim.unit,
        "bar": claim.bar,
        "goal": claim.goal,
        "met": verdict.met,
        "sure": verdict.sure,
        "found": None if found is None else _rounded(asdict(found)),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    members = asdict(turn)
    for result in members["results"].values():
        del result["ttfts_s"]
    rounded: dict[str, Any] = _rounded(members)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
