"""Writes every number of the pages about measurements from the result files; with --check only compares.

Words are written by hand. A number stands between a comment that says where it comes from and one that
ends it; paths go through the JSON with slashes, formats are Python's:

    <!-- value FILE PATH FORMAT -->…<!-- end -->                        one number, within a sentence
    <!-- bars FILE -->…<!-- end -->                                     what a scenario must reach, and did
    <!-- grid FILE ROWS=a,b COLUMNS=c,d PATH FORMAT -->…<!-- end -->    a table; {row}, {column} in the path
    <!-- block FILE PATH -->…<!-- end -->                               a text, as it is
    <!-- made FILE... -->…<!-- end -->                                  command, commit, machine, versions;
                                                                        whether its scenario was another one

FILE is a name in benchmarks/results/ without its ending. What was not measured yet is told so.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SCENARIOS = ROOT / "src" / "llm_runtime" / "bench" / "scenarios"
NAMES = ("benchmark_report", "benchmarks", "engines", "overload", "performance", "scaling", "scheduling")
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES)
DIRECTIVE = re.compile(r"<!-- (value|bars|grid|block|made)\b ?(.*?) -->.*?<!-- end -->", re.DOTALL)
MISSING = "(not measured yet)"


@cache
def result(name: str) -> Any:
    """None where there is no such file."""
    path = RESULTS / f"{name}.json"
    return orjson.loads(path.read_bytes()) if path.exists() else None


def rendered(text: str) -> str:
    """The page with every number as the result files have it. Raises ValueError for a path that leads
    nowhere and a directive that cannot be read."""
    return DIRECTIVE.sub(_directive, text)


def _directive(match: re.Match[str]) -> str:
    kind, rest = match.groups()
    try:
        body = KINDS[kind](shlex.split(rest))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"<!-- {kind} {rest} -->: {error!r}") from error
    return f"{match[0].partition('-->')[0]}-->{body}<!-- end -->"


def _value(words: Sequence[str]) -> str:
    name, path, form = words
    body = result(name)
    return MISSING if body is None else _formatted(found(body, path), form)


def _block(words: Sequence[str]) -> str:
    name, path = words
    body = result(name)
    return f"\n{MISSING}\n" if body is None else f"\n```text\n{found(body, path)}\n```\n"


def _bars(words: Sequence[str]) -> str:
    (name,) = words
    body = result(name)
    if body is None:
        return f"\n{MISSING}\n"
    rows = [
        [f"`{bar['figure']}`", _short(body["figures"].get(bar["figure"])),
         f"{'≤' if bar['relation'] == '<=' else '≥'} {_short(bar['value'])}",
         "met" if bar["met"] else "**missed**"]
        for bar in body["bars"]
    ]  # fmt: skip
    return _table(["figure", "measured", "bar", ""], rows)


def _grid(words: Sequence[str]) -> str:
    name, rows, columns, path, form = words
    (row_title, _, row_names), (column_title, _, column_names) = rows.partition("="), columns.partition("=")
    body = result(name)
    if body is None:
        return f"\n{MISSING}\n"
    table = [
        [_word(row), *(_formatted(found(body, path.format(row=_key(row), column=_key(column))), form)
                 for column in column_names.split(","))]
        for row in row_names.split(",")
    ]  # fmt: skip
    header = [f"{row_title} \\ {column_title}", *(_word(column) for column in column_names.split(","))]
    return _table(header, table)


def _made(words: Sequence[str]) -> str:
    rows = []
    for name in words:
        body = result(name)
        if body is None:
            rows.append([f"`{name}.json`", MISSING, "", "", ""])
            continue
        environment = environment_of(body)
        versions = {"Python": environment["python"], **environment["packages"]}
        told = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        gpus = "".join(f", {gpu['name']}" for gpu in environment["gpus"])
        dirty = " with changes" if environment["dirty"] else ""
        if is_outdated(body):
            dirty += ", its scenario's file has changed since"
        rows.append([
            f"`{name}.json`", f"`{body['command']}`", f"`{(environment['commit'] or 'none')[:12]}`{dirty}",
            f"{environment['cpu']}, {environment['num_cores']} cores{gpus}", told,
        ])  # fmt: skip
    return _table(["result", "command", "commit", "machine", "versions"], rows)


@cache
def definitions() -> frozenset[str]:
    """Hashes of the files in which scenarios are fixed, as they are now."""
    return frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in SCENARIOS.glob("*.py"))


def is_outdated(body: dict[str, Any]) -> bool:
    """Whether a result is of a scenario whose file is not what it was."""
    definition = body.get("definition")
    return definition is not None and definition["sha256"] not in definitions()


KINDS: dict[str, Callable[[Sequence[str]], str]] = {
    "value": _value, "bars": _bars, "grid": _grid, "block": _block, "made": _made,
}  # fmt: skip


def environment_of(body: dict[str, Any]) -> dict[str, Any]:
    """Of a scenario, a run, or the first point of a sweep."""
    source = body if "environment" in body else body["points"][0]["summary"]
    environment: dict[str, Any] = source["environment"]
    return environment


def found(body: Any, path: str) -> Any:
    for key in path.split("/"):
        body = body[int(key)] if isinstance(body, list) else body[key]
    return body


def _key(name: str) -> str:
    """`key:word` shows the word."""
    return name.partition(":")[0]


def _word(name: str) -> str:
    return name.partition(":")[2] or name


def _formatted(value: Any, form: str) -> str:
    """A dash for what is undefined or withheld."""
    return "-" if value is None else format(value, form)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, rule, *rows)
    )
    return "\n" + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = rendered(text)
        if fresh == text:
            continue
        stale.append(page.relative_to(ROOT))
        if "--check" not in arguments:
            page.write_text(fresh, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"{', '.join(map(str, stale))}: not what the results say; run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
