"""How many instructions of its own a gateway spends: `python benchmarks/gateway_instructions.py`.

Counts by valgrind, so that what a change of the code is worth can be told on any machine; what a gateway
costs in time, kernel and caches included, is gateway_overhead.py's. Writes
benchmarks/results/gateway-instructions.json. Linux, valgrind.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so that it also runs as a plain script

from benchmarks.overhead import participants  # noqa: E402
from benchmarks.overhead.instructions import (  # noqa: E402
    GAP_S,
    NUM_PLAIN,
    NUM_STREAMS,
    NUM_TOKENS,
    Counted,
    NotCounted,
    count,
    missing_tools,
)
from benchmarks.overhead.participants import Participant  # noqa: E402
from benchmarks.overhead.servers import StartError  # noqa: E402
from llm_runtime.bench import facts  # noqa: E402
from llm_runtime.bench.files import write_json  # noqa: E402

SCHEMA = "llm-runtime/gateway-instructions/1"
USUAL = (participants.OURS, participants.COMPILED, participants.ROUTER, participants.SMG, participants.BARE)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if missing := missing_tools():
        raise SystemExit(f"{missing[0]} is needed (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        folder = Path(name)
        chosen = [participants.known()[each] for each in options.participants]
        chosen += [participants.of_commit(commit, _new(folder / commit)) for commit in options.before]
        told = {one.name: _told(one, options.rounds, folder) for one in chosen}
    body = {
        "schema": SCHEMA,
        "command": " ".join(["python benchmarks/gateway_instructions.py", *options.given]),
        "environment": facts.environment(),
        "load": {
            "gap_s": GAP_S,
            "num_tokens": NUM_TOKENS,
            "num_plain": NUM_PLAIN,
            "num_streams": NUM_STREAMS,
        },
        "rounds": options.rounds,
        "participants": told,
    }
    write_json(options.out, body)
    sys.stdout.write(f"written: {options.out}\n")
    return 0 if all("problem" not in each for each in told.values()) else 1


def _told(participant: Participant, rounds: int, folder: Path) -> dict[str, Any]:
    """The medians of some lives and each of them, or why there are none."""
    if participant.missing is not None:
        return {"problem": participant.missing}
    found: list[Counted] = []
    for _ in range(rounds):
        place = Path(tempfile.mkdtemp(dir=folder))
        try:
            found.append(count(participant, place))
        except (NotCounted, StartError) as error:
            return {"problem": str(error)}
        sys.stdout.write(f"{participant.name}: {found[-1]}\n")
        sys.stdout.flush()
    figures = [asdict(each) for each in found]
    medians = {name: statistics.median([each[name] for each in figures]) for name in figures[0]}
    return {"about": participant.about, "version": participant.version, **medians, "rounds": figures}


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--participants", type=lambda text: text.split(","), default=list(USUAL), metavar="A,B"
    )
    parser.add_argument("--before", action="append", default=[], metavar="COMMIT",
                        help="also count ours as of that commit")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/gateway-instructions.json")
    options = parser.parse_args(arguments)
    options.given = list(sys.argv[1:] if arguments is None else arguments)
    return options


if __name__ == "__main__":
    sys.exit(main())
