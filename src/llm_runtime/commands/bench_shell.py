"""What every `bench` command does around its work: signals, messages, the command line to note down."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from llm_runtime.core.errors import ConfigError, LLMRuntimeError

if TYPE_CHECKING:
    from llm_runtime.bench.run import Interrupt

T = TypeVar("T")

SECRET_OPTIONS = ("--api-key", "--header")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turns what is raised on purpose into a message and an exit code."""
    from llm_runtime.bench.run import Interrupted

    try:
        yield
    except Interrupted as error:
        typer.echo(f"llm-runtime: {error.message}", err=True)
        raise typer.Exit(130) from None
    except LLMRuntimeError as error:
        typer.echo(f"llm-runtime: {error.message}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def in_loop(work: Callable[[Interrupt], Coroutine[Any, Any, T]], *, keeps: bool = True) -> T:
    """Runs the work on a loop with exact timers. The first SIGINT or SIGTERM asks it to stop and
    keep what it has, or cancels it where it keeps nothing; the second one ends the process as usual.

    Raises Interrupted when the work was cancelled.
    """
    import asyncio

    from llm_runtime.bench import clock
    from llm_runtime.bench.run import Interrupt, Interrupted

    interrupt = Interrupt()

    async def main() -> T:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
            interrupt.request()

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop)
        task = asyncio.current_task()
        if not keeps and task is not None:
            interrupt.reaches(task.cancel)
        try:
            return await work(interrupt)
        except asyncio.CancelledError:
            raise Interrupted("stopped; nothing was kept") from None
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        return runner.run(main())


def command_line() -> str:
    """The command as typed, for result files: without keys, headers and folders."""
    return public_command(sys.argv[1:])


def public_command(arguments: list[str]) -> str:
    words, hide = ["llm-runtime"], False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide:
            words.append("...")
        elif equals and option in SECRET_OPTIONS:
            words.append(f"{option}=...")
        else:
            words.append(_without_key(PurePath(argument).name if argument.startswith("/") else argument))
        hide = argument in SECRET_OPTIONS
    return shlex.join(words)


def _without_key(argument: str) -> str:
    """A class of traffic may carry a key among its parts; an address a password."""
    if "key=" in argument:
        parts = argument.split(",")
        return ",".join("key=..." if part.strip().startswith("key=") else part for part in parts)
    if "://" in argument and "@" in argument:
        scheme, _, rest = argument.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"
    return argument
