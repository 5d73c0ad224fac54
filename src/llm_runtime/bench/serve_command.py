"""The command line of a server of ours, as a template for `launch.launched`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping


def serve_command(backend: str, settings: Mapping[str, object]) -> str:
    """settings: names and values as `-o` takes them; `{name}` in a value is one of the template's. The
    program is the one beside this interpreter, see `launch`."""
    options = "".join(f" -o {shlex.quote(f'{name}={_text(value)}')}" for name, value in settings.items())
    return f"llm-runtime serve --port {{port}} -o backend={backend}{options}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
