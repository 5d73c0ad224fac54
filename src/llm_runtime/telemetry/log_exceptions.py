"""Exceptions as text that is safe to log: where it happened always, what it says only if it may.

The text of an arbitrary exception often quotes the value that broke the code, and here that value may
be somebody's prompt. So the text is kept for the kinds that speak of the system (files, sockets,
engines) and left out for the rest, whose type, file and line tell a developer enough. Locals never.
"""

from __future__ import annotations

import traceback
from types import TracebackType

from llm_runtime.core.errors import InvalidRequest, LLMRuntimeError

MAX_FRAMES = 30
MAX_MESSAGE = 500
MAX_MEMBERS = 10
MAX_CHAIN = 8


def message_of(error: BaseException) -> str:
    """One line: the type, and what it says where that cannot be request data."""
    name = type(error).__name__
    if isinstance(error, InvalidRequest):
        return f"{name}: {error.reason}" + (f" ({error.param})" if error.param else "")
    if isinstance(error, (LLMRuntimeError, OSError, ImportError, RuntimeError)):
        text = " ".join(str(error).split())[:MAX_MESSAGE]
        return f"{name}: {text}" if text else name
    return name


def describe(error: BaseException) -> str:
    """The traceback, innermost frame last, with causes and the members of groups. No data."""
    lines: list[str] = []
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and len(chain) < MAX_CHAIN:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    for one in reversed(chain):
        if lines:
            lines.append("then:")
        lines += _frames(one.__traceback__)
        lines.append(message_of(one))
        if isinstance(one, BaseExceptionGroup):
            for member in one.exceptions[:MAX_MEMBERS]:
                lines += ("  | " + line for line in describe(member).splitlines())
    return "\n".join(lines)


def _frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)
    shown = [f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames[-MAX_FRAMES:]]
    hidden = len(frames) - len(shown)
    return [f"({hidden} outer frames)", *shown] if hidden else shown
