"""`llm-runtime bench`: options, files and exit codes of the load harness; the work is in `bench`.

Exit codes: 0 done and fit for use, 1 void, invalid or failed or a bar missed, 2 wrong usage, 130
interrupted (what was measured until then is written).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_runtime.commands.bench_options import (
    LimitOptions,
    LoadOptions,
    TargetOptions,
    TraceOptions,
    TrafficOptions,
    flattened,
)
from llm_runtime.commands.bench_shell import command_line, in_loop, told_plainly

if TYPE_CHECKING:
    from llm_runtime.bench.config import Plan
    from llm_runtime.bench.run import Watcher
    from llm_runtime.bench.sweep import Levels, Server

RESULTS = "bench-results"
SCENARIO_RESULTS = Path("benchmarks/results")

app = typer.Typer(help="Measure any OpenAI-compatible server.", no_args_is_help=True, rich_markup_mode=None)
scenarios = typer.Typer(help="Claims that can be run and checked: list, run.", no_args_is_help=True)
app.add_typer(scenarios, name="scenario")


@dataclass(frozen=True)
class OutputOptions:
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="JSON file.", show_default=f"{RESULTS}/DATE.json", metavar="FILE"
        ),
    ] = None
    progress: Annotated[bool, typer.Option(help="Show how it goes, on a terminal.")] = True
    allow_void: Annotated[
        bool, typer.Option(help="End with 0 although the client was too late for its figures to be used.")
    ] = False

    def path(self, kind: str) -> Path:
        from datetime import datetime

        if self.output is not None:
            return self.output
        return Path(RESULTS) / f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{kind}.json"

    def watcher(self) -> Watcher | None:
        if not self.progress or not sys.stderr.isatty():
            return None
        from rich.console import Console

        from llm_runtime.bench.progress import ProgressLine

        return ProgressLine(Console(stderr=True))


@dataclass(frozen=True)
class SweepOptions:
    concurrencies: Annotated[str | None, typer.Option(help="Levels of a closed loop: 1,8,16,32,64.")] = None
    rates: Annotated[str | None, typer.Option(help="Levels of an open loop: 1,2,4.")] = None
    per_level: Annotated[
        float | None, typer.Option(help="Requests of a run for every unit of its level.")
    ] = None
    repeats: Annotated[int, typer.Option(min=1, help="Times round all levels.")] = 1
    server: Annotated[
        str | None,
        typer.Option(help="Command line of a server to start, with {port} and the names of --vary."),
    ] = None
    vary: Annotated[
        list[str] | None, typer.Option(help="Setting of that server, as in slots=1,2,4; may be repeated.")
    ] = None

    def levels(self) -> Levels:
        from llm_runtime.bench.notation import parse_numbers, parse_whole_numbers
        from llm_runtime.bench.sweep import Levels

        return Levels(
            parse_whole_numbers(self.concurrencies) if self.concurrencies else (),
            parse_numbers(self.rates) if self.rates else (),
            self.per_level,
        )

    def started(self) -> Server | None:
        from llm_runtime.bench.notation import parse_vary
        from llm_runtime.bench.sweep import Server

        return Server(self.server, parse_vary(self.vary or ())) if self.server else None


@app.command()
@flattened
def run(
    target: TargetOptions,
    load: LoadOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    output: OutputOptions,
) -> None:
    """Put a load on a server and measure it: closed loop by default, open loop with --rate."""
    with told_plainly():
        _measure(load.plan(target, traffic, limits), output, "run")


@app.command()
@flattened
def replay(
    trace: TraceOptions,
    target: TargetOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    output: OutputOptions,
) -> None:
    """Replay a recorded load, scaled as told, against a server."""
    with told_plainly():
        _measure(trace.plan(target, traffic, limits), output, "replay")


@app.command()
@flattened
def compare(
    target: TargetOptions,
    other: Annotated[str, typer.Argument(help="Address of the server to compare with the first.")],
    load: LoadOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    output: OutputOptions,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; 5 or more give intervals.")] = 5,
    other_model: Annotated[str | None, typer.Option(help="Model of the second server.")] = None,
) -> None:
    """Compare two servers in alternating rounds of one load; ratios are the second by the first."""
    with told_plainly():
        from llm_runtime.bench import compare as comparison
        from llm_runtime.bench.files import write_json
        from llm_runtime.bench.present import comparison_lines

        plan = load.plan(target, traffic, limits)
        model = other_model if other_model is not None or target.model is None else target.model
        opponent = replace(plan, target=replace(plan.target, url=other, model=model))
        done = in_loop(
            lambda interrupt: comparison.compare(plan, opponent, rounds, output.watcher(), interrupt)
        )
        body = comparison.as_json(done, comparison.ratios(done, plan.seed), command_line())
        path = output.path("compare")
        write_json(path, body)
        for line in comparison_lines(body):
            typer.echo(line)
        typer.echo(f"written: {path}")
    if len(done) < rounds:
        raise typer.Exit(130)
    if body["num_used"] < len(done) and not output.allow_void:
        raise typer.Exit(1)


@app.command()
@flattened
def sweep(
    target: TargetOptions,
    load: LoadOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    output: OutputOptions,
    levels: SweepOptions,
) -> None:
    """Measure at several concurrencies or rates, optionally for several settings of a server."""
    with told_plainly():
        from llm_runtime.bench import sweep as sweeping
        from llm_runtime.bench.files import write_json
        from llm_runtime.bench.present import sweep_lines

        plan, chosen, server = load.plan(target, traffic, limits), levels.levels(), levels.started()
        num_points = len(chosen.plans(plan)) * levels.repeats * (len(server.settings()) if server else 1)
        points = in_loop(
            lambda interrupt: sweeping.sweep(
                plan,
                chosen,
                repeats=levels.repeats,
                server=server,
                watcher=output.watcher(),
                interrupt=interrupt,
            )
        )
        body = sweeping.as_json(points, chosen, command_line())
        path = output.path("sweep")
        write_json(path, body)
        for line in sweep_lines(body):
            typer.echo(line)
        typer.echo(f"written: {path}")
    if len(points) < num_points:
        raise typer.Exit(130)
    _exit([point.summary for point in points], output)


@app.command()
def report(
    results: Annotated[
        list[Path], typer.Argument(help="Result files of run, replay, sweep, compare or scenarios.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Page to write: .html or .md.", metavar="FILE")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Benchmark report",
) -> None:
    """Make one self-contained page of results: tables and, with matplotlib, curves."""
    with told_plainly():
        from llm_runtime.bench.report import write_report

        for note in write_report(results, output, title):
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"written: {output}")


@scenarios.command("list")
def list_scenarios() -> None:
    """List the scenarios, each with the question it answers."""
    with told_plainly():
        from llm_runtime.bench.scenario import all_scenarios

        for scenario in all_scenarios().values():
            typer.echo(f"{scenario.name:<20}  {scenario.question}")


@scenarios.command("run")
def run_scenario(
    name: Annotated[str, typer.Argument(help="Scenario, as listed.")],
    quick: Annotated[bool, typer.Option("--quick", help="Less than two minutes; fewer samples.")] = False,
    check: Annotated[bool, typer.Option("--check", help="End with 1 when a bar is missed.")] = False,
    results: Annotated[Path, typer.Option(help="Folder for the result file.")] = SCENARIO_RESULTS,
) -> None:
    """Run a scenario, write its result and print its figures, those with a bar last."""
    with told_plainly():
        from llm_runtime.bench import scenario as framework
        from llm_runtime.bench.present import checked_lines

        chosen = framework.find(name)
        state = framework.identity(chosen)
        if state["commit"] is None or state["differs_from_commit"]:
            typer.echo("note: this definition is not committed, so the result cannot name it", err=True)
        result = in_loop(
            lambda _: framework.measure(chosen, quick=quick, folder=results, command=command_line()),
            keeps=False,
        )
        checked = framework.check(chosen, result, quick=quick)
        typer.echo(f"written: {framework.result_path(chosen, results, quick=quick)}")
        for line in checked_lines(result, checked):
            typer.echo(line)
    if check and not all(bar.met for bar in checked):
        raise typer.Exit(1)


def _measure(plan: Plan, output: OutputOptions, kind: str) -> None:
    from llm_runtime.bench import present
    from llm_runtime.bench.files import write_result
    from llm_runtime.bench.run import run as run_plan
    from llm_runtime.bench.summary import summarise

    result = in_loop(lambda interrupt: run_plan(plan, output.watcher(), interrupt))
    summary = summarise(result, command_line())
    path = output.path(kind)
    write_result(path, summary, result)
    for line in present.lines(summary):
        typer.echo(line)
    typer.echo(f"written: {path}")
    _exit([summary], output)


def _exit(summaries: list[dict[str, Any]], output: OutputOptions) -> None:
    states = {summary["verdict"]["state"] for summary in summaries}
    if any(summary["verdict"]["interrupted"] for summary in summaries):
        raise typer.Exit(130)
    if states - ({"ok", "void"} if output.allow_void else {"ok"}):
        raise typer.Exit(1)
