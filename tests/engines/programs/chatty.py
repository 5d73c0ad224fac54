"""Prints 4 MB to each of stdout and stderr, more than any pipe holds, then DONE, and exits."""

from __future__ import annotations

import sys

for _ in range(1000):
    sys.stdout.write("o" * 3999 + "\n")
    sys.stderr.write("e" * 3999 + "\n")
print("DONE", flush=True)
