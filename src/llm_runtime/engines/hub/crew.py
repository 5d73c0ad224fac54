"""Several pieces of blocking work at once, given up together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

Task = Callable[[], None]


class Stopped(Exception):
    """The work was given up meanwhile."""


def run_all(tasks: Sequence[Task], num_threads: int, stop: threading.Event) -> None:
    """Runs every task. The first failure sets `stop`, which tasks heed by raising Stopped, and is raised
    when all threads have ended.

    Interrupted from the keyboard it does not wait for threads: one may sit in a read for as long as the
    network lets it, and none outlives the process.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    num = min(num_threads, len(tasks))
    threads = [threading.Thread(target=_work, args=(waiting, ended, stop), daemon=True) for _ in range(num)]
    for thread in threads:
        thread.start()
    try:
        errors = [ended.get() for _ in threads]
    except BaseException:
        stop.set()
        raise
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None and not isinstance(error, Stopped):
            raise error


def _work(
    waiting: queue.SimpleQueue[Task], ended: queue.SimpleQueue[BaseException | None], stop: threading.Event
) -> None:
    failure: BaseException | None = None
    try:
        while not stop.is_set():
            waiting.get_nowait()()
    except queue.Empty:
        pass
    except BaseException as error:
        stop.set()
        failure = error
    ended.put(failure)
