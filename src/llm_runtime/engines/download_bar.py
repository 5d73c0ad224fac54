"""Shows a download to whoever sits at the terminal: a bar there, one line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_runtime.engines.package_fetch import Report


@contextmanager
def download_bar(label: str) -> Iterator[Report]:
    """Gives what to report to. On stderr, and nothing at all is shown before the first report."""
    close = _nothing_open
    show: Report | None = None

    def report(num_bytes: int, num_total_bytes: int) -> None:
        nonlocal show, close
        if show is None:
            show, close = _open(label, num_total_bytes)
        show(num_bytes, num_total_bytes)

    try:
        yield report
    finally:
        close()


def _nothing_open() -> None:
    """There was no report, so there is nothing to close."""


def _open(label: str, num_total_bytes: int) -> tuple[Report, Callable[[], None]]:
    if not sys.stderr.isatty():
        sys.stderr.write(f"{label} ({num_total_bytes / 1e6:.0f} MB)\n")
        return (lambda num_bytes, num_total_bytes: None), _nothing_open

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(label, total=num_total_bytes)
    progress.start()
    return (
        lambda num_bytes, num_total_bytes: progress.update(task, completed=num_bytes, total=num_total_bytes)
    ), progress.stop
