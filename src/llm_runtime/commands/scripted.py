"""`llm-runtime bench` called from a script as if typed, so that result files name that command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_runtime.commands.bench import app


def bench(*words: str | Sequence[str]) -> int:
    """The exit status. words: of the command line after `llm-runtime bench`; sequences are taken apart.
    They replace this process's own, because results note down the command that made them."""
    arguments = [each for word in words for each in ([word] if isinstance(word, str) else word)]
    sys.argv = ["llm-runtime", "bench", *arguments]
    try:
        app(args=arguments, prog_name="llm-runtime bench")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
