"""Fails for any Python file over 400 lines, and mentions those over 300: a module that grows is split."""

from __future__ import annotations

import sys
from pathlib import Path

SMELL_LINES = 300
MAX_LINES = 400


def main(folders: list[str]) -> int:
    too_long = False
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            num_lines = path.read_bytes().count(b"\n")
            if num_lines > MAX_LINES:
                too_long = True
                sys.stderr.write(f"{path}: {num_lines} lines, at most {MAX_LINES} are allowed: split it\n")
            elif num_lines > SMELL_LINES:
                sys.stdout.write(f"{path}: {num_lines} lines, over {SMELL_LINES}: think of splitting it\n")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
