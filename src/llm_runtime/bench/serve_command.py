"""The command line of a server of ours, as a template for `launch.launched`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path


def serve_command(backend: str, settings: Mapping[str, object]) -> str:
    """settings: names and values as `-o` takes them. The program is the one beside this interpreter."""
    program = shlex.quote(str(Path(sys.executable).with_name("llm-runtime")))
    options = "".join(f" -o {shlex.quote(f'{name}={_text(value)}')}" for name, value in settings.items())
    return f"{program} serve --port {{port}} -o backend={backend}{options}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
