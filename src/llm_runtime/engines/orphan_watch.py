"""Ends what a library started in our name when we can't: the guard for processes that are not ours to start.

    python -m llm_runtime.engines.orphan_watch --state FILE --pipe-fd N

Processes that inherit a mark in their environment are found again wherever they went. This program
waits for the end of the pipe from their owner, which comes with the owner's death however it dies,
and then kills every process with the mark. If this program is killed as well, its note lets the
owner's next start do it. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from llm_runtime.engines import leftovers, proctable
from llm_runtime.engines.leftovers import TOKEN_VARIABLE, GuardNote, Identity

WITHIN_S = 30.0  # for processes that have a GPU or gigabytes to let go of


class OrphanWatch:
    """Owned by the one engine whose processes it watches over.

    environment: to be in the environment of every process that is to be ended.
    """

    def __init__(self, state_dir: Path, name: str) -> None:
        """Starts the watching program. Blocks for some milliseconds. Raises OSError."""
        token = os.urandom(16).hex()
        self.environment = {TOKEN_VARIABLE: token}
        self._note_path = state_dir / f"{name}-{uuid.uuid4().hex[:12]}.json"
        read_fd, self._write_fd = os.pipe()
        command = (sys.executable, "-P", "-m", "llm_runtime.engines.orphan_watch")
        try:
            self._process = subprocess.Popen(
                (*command, "--state", str(self._note_path), "--pipe-fd", str(read_fd)),
                stdin=subprocess.DEVNULL,
                pass_fds=(read_fd,),
                start_new_session=True,
            )
        finally:
            os.close(read_fd)
        self._note = GuardNote(
            boot=proctable.boot_id(),
            token=token,
            command=name,
            owner=Identity.of(os.getpid()),
            guard=Identity.of(self._process.pid),
            child=None,
            scratch=None,
        )
        leftovers.write_note(str(self._note_path), self._note)

    def add(self, pid: int) -> None:
        """Names a process to be ended with all below it, mark or no mark: programs that give themselves a
        title may write it over their environment. The last one named counts."""
        self._note = self._note._replace(child=Identity.of(pid))
        leftovers.write_note(str(self._note_path), self._note)

    def close(self) -> None:
        """Ends the watch, and whatever still has the mark. Blocks until that is done. Once only."""
        os.close(self._write_fd)
        self._process.wait()


def main(arguments: list[str]) -> int:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    note_path, pipe_fd = given["--state"], int(given["--pipe-fd"])
    while os.read(pipe_fd, 1):
        pass
    leftovers.remove_leftover(note_path, WITHIN_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
