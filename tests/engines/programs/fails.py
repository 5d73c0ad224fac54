"""Prints a cause to stderr and exits. Arguments: exit code, seconds before it."""

from __future__ import annotations

import sys
import time

print("loading", flush=True)
time.sleep(float(sys.argv[2]))
print("cannot read /secret/weights.gguf", file=sys.stderr, flush=True)
sys.exit(int(sys.argv[1]))
