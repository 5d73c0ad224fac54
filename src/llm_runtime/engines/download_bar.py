"""Shows a download to whoever sits at the terminal: a bar there, one line at each end elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_runtime.engines.package_fetch import Report


@contextmanager
def download_bar(label: str) -> Iterator[Report]:
    """Gives what to report to. On stderr, and nothing at all is shown before the first report."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    task = progress.add_task(label, total=None)
    begun = False

    def report(num_bytes: int, num_total_bytes: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            progress.start()
            if not console.is_terminal:
                console.print(f"{label} ({num_total_bytes / 1e6:.0f} MB)", highlight=False)
        progress.update(task, completed=num_bytes, total=num_total_bytes)

    try:
        yield report
    finally:
        if begun:
            progress.stop()
