"""What a gateway costs, ours and others', in one interleaved run: `python benchmarks/gateway_overhead.py`.

Starts a stub upstream, then each participant in turn, and writes benchmarks/results/gateway-overhead.json
and .md. `--quick` takes under two minutes and writes to build/, `--check` ends with status 1 when a bar is
missed, `--soak` looks at memory instead. docs/performance.md explains what is measured and how. Linux only.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so that it also runs as a plain script

from benchmarks.overhead import claims, participants, report, soak_report  # noqa: E402
from benchmarks.overhead.participants import Participant  # noqa: E402
from benchmarks.overhead.plan import FULL, PHASES, QUICK, Plan  # noqa: E402
from benchmarks.overhead.rounds import run_rounds  # noqa: E402
from benchmarks.overhead.soak import soak  # noqa: E402
from benchmarks.overhead.summary import summarise  # noqa: E402
from benchmarks.overhead.together import TOGETHER, run_together  # noqa: E402
from benchmarks.overhead.turn import Turn  # noqa: E402
from llm_runtime.bench import facts  # noqa: E402
from llm_runtime.bench.files import write_json  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SCRATCH = ROOT / "build"
"""For quick runs, whose figures are for a look and not for the record."""
SOAK_REQUESTS = 200_000
SOAK_READERS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit status: 1 when a bar asked for is missed or could not be measured."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="overhead-before-") as folder:
        chosen, skipped = choose(options.participants, quick=options.quick)
        if options.before:
            chosen.append(participants.of_commit(options.before, Path(folder)))
        plan = plan_of(options)
        if options.soak:
            return _soak(options, plan, chosen)
        return _measure(options, plan, chosen, skipped)


def _measure(
    options: argparse.Namespace, plan: Plan, chosen: list[Participant], skipped: dict[str, str]
) -> int:
    chosen = [one for one in chosen if set(one.phases) & set(plan.phases)]
    started_at, begun_at = time.time(), time.monotonic()
    if options.together:
        chosen = [one for one in chosen if set(plan.phases) <= set(one.phases) and one.command is not None]
        if not chosen:
            raise SystemExit(
                "nobody to measure together: of those asked for, none is installed and has all phases"
            )
        turns = run_together(plan, chosen, _tell)
    else:
        turns = run_rounds(plan, chosen, _tell)
    summary = summarise(turns, plan.rounds)
    verdicts = claims.judge(summary)
    run = report.Run(
        command=_command(options),
        started_at=started_at,
        duration_s=time.monotonic() - begun_at,
        environment=facts.environment(),
        plan=plan,
        participants=chosen,
        skipped=skipped,
        turns=turns,
        summary=summary,
        verdicts=verdicts,
        interpreters={one.name: told for one in chosen if (told := one.interpreter) is not None},
    )
    name = "gateway-together.json" if options.together else "gateway-overhead.json"
    path: Path = options.out or (SCRATCH if options.quick else RESULTS) / name
    write_json(path, report.as_json(run))
    text = report.as_markdown(run)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    _say(f"\n{text}")
    if options.check and (missed := claims.failing(verdicts, options.check)):
        names = "; ".join(verdict.claim.text for verdict in missed)
        _say(f"FAILED: {names}")
        return 1
    return 0


def _soak(options: argparse.Namespace, plan: Plan, chosen: list[Participant]) -> int:
    """Ours unless others are named."""
    names = options.participants or [participants.OURS]
    wanted = [one for one in chosen if one.name in names and one.command is not None]
    soaks = [soak(plan, one, options.soak, SOAK_READERS, _say) for one in wanted]
    path: Path = options.out or RESULTS / "gateway-memory.json"
    write_json(path, soak_report.as_json(soaks, _command(options), facts.environment()))
    text = soak_report.as_markdown(soaks)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    if not soak_report.draw(soaks, path.with_suffix(".svg")):
        _say("no picture: matplotlib is not installed")
    _say(f"\n{text}")
    return 0 if soaks and all(one.passed for one in soaks) else 1


def _command(options: argparse.Namespace) -> str:
    return shlex.join(["python", "benchmarks/gateway_overhead.py", *options.given])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def choose(names: Sequence[str] | None, *, quick: bool) -> tuple[list[Participant], dict[str, str]]:
    """Those to be measured, and why others are not. Without names: all that are installed, in a quick
    run without the slow ones. Raises SystemExit for a name that nobody has."""
    known = participants.known()
    if unknown := set(names or ()) - set(known):
        raise SystemExit(f"no participant {unknown.pop()}; there are: {', '.join(known)}")
    chosen, skipped = [], {}
    for name, participant in known.items():
        if names is not None and name not in names and name != participants.DIRECT:
            continue
        if participant.missing is not None:
            skipped[name] = participant.missing
        elif names is None and quick and not participant.in_quick:
            skipped[name] = "not in --quick unless it is named"
        else:
            chosen.append(participant)
    return chosen, skipped


def plan_of(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    changes = {
        name: value
        for name in ("rounds", "streams", "num_tokens", "gap_s", "concurrency", "rate_per_s", "seed")
        if (value := getattr(options, name)) is not None
    }
    if options.phases is not None:
        if unknown := set(options.phases) - set(PHASES):
            raise SystemExit(f"no phase {unknown.pop()}; there are: {', '.join(PHASES)}")
        for name in PHASES:
            window_s = plan.window_s(name) or FULL.window_s(name)
            changes[f"{name}_s"] = window_s if name in options.phases else 0.0
    if options.together:
        if others := sorted(set(options.phases or ()) - set(TOGETHER)):
            raise SystemExit(f"{others[0]} is measured in turns only; together: {', '.join(TOGETHER)}")
        changes |= {f"{name}_s": 0.0 for name in PHASES if name not in TOGETHER}
    return replace(plan, **changes, pinned=not options.no_pin, awake=options.awake)


def _tell(turn: Turn) -> None:
    words = [f"round {turn.round_number + 1}, {turn.participant}:"]
    for phase, result in turn.results.items():
        if result.cpu_s is not None and result.num_tokens:
            words.append(f"{phase} {1e6 * result.cpu_s / result.num_tokens:.1f} µs/token")
        elif result.cpu_s is not None and result.num_plain:
            words.append(f"{phase} {1e3 * result.cpu_s / result.num_plain:.3f} ms/request")
    if turn.problem:
        words.append(turn.problem.splitlines()[0])
    _say(" ".join(words))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway_overhead.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds, without slow peers")
    parser.add_argument(
        "--check", nargs="?", const="ci", choices=tuple(claims.ASKED), help="fail on missed bars"
    )
    parser.add_argument("--participants", type=lambda text: text.split(","), metavar="A,B",
                        help=f"of {', '.join(participants.known())}")  # fmt: skip
    parser.add_argument("--phases", type=lambda text: text.split(","), metavar="A,B",
                        help=f"of {', '.join(PHASES)}; without: all, quickly the cheapest")  # fmt: skip
    parser.add_argument("--before", metavar="COMMIT", help="also measure ours as of that commit")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--streams", type=int, help="streams at once")
    parser.add_argument("--tokens", type=int, dest="num_tokens", help="tokens of a stream")
    parser.add_argument("--gap", type=float, dest="gap_s", help="seconds between tokens")
    parser.add_argument("--concurrency", type=int, help="plain requests at once")
    parser.add_argument("--rate", type=float, dest="rate_per_s", help="arriving streams per second")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-pin", action="store_true", help="let the kernel choose cores")
    parser.add_argument("--awake", action="store_true",
                        help="keep idle cores from being taken away: for a virtual machine")  # fmt: skip
    parser.add_argument("--together", action="store_true",
                        help="everybody at once, each with a share of the load: sharper, of CPU")  # fmt: skip
    parser.add_argument("--soak", nargs="?", type=int, const=SOAK_REQUESTS, metavar="REQUESTS",
                        help="memory instead: so many requests, then readers that stall")  # fmt: skip
    parser.add_argument("--out", type=Path, help="JSON file; Markdown goes beside it")
    options = parser.parse_args(arguments)
    options.given = list(sys.argv[1:] if arguments is None else arguments)
    return options


if __name__ == "__main__":
    sys.exit(main())
