"""The guard: a tiny process between us and an engine, so that nothing of the engine outlives us.

    python -m llm_runtime.engines.guard --state FILE --pipe-fd N --grace S -- command...

It starts the command in a session of its own and waits for the first of: end of file on the
inherited pipe (we are gone, even by SIGKILL), SIGTERM or SIGINT (we want it to stop), the command's
end. Then the command and everything it ever started get SIGTERM, after the grace SIGKILL, stopped
ones too, and are reaped. It exits with the command's code, 128 + n after signal n, 126 or 127 when
the command could not be started.

If the guard itself is killed, the kernel kills the command (Linux), and the note in the state file
lets `leftovers.remove_leftovers` find the rest. Without `/proc` and prctl (macOS) it signals the
command's process group only. Standard library only: it must start in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
import zlib
from typing import NamedTuple, NoReturn

from llm_runtime.engines import leftovers, proctable
from llm_runtime.engines.leftovers import GuardNote, Identity

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
EXIT_CONFIG = 78
"""What our own engine programs exit with when starting them again cannot help (EX_CONFIG)."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
ORPHAN_GRACE_S = 0.3  # for what a command that ended by itself left behind
RESWEEP_S = 0.05  # between two looks for processes that appeared while others were being killed
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Options(NamedTuple):
    state: str
    pipe_fd: int
    grace_s: float
    scratch: str | None
    command: list[str]


class Guard:
    """Owned by `main`; one per process, one thread."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.child = 0
        self.status: int | None = None  # the command's wait status, once it has ended
        self.asked = False  # to stop, by a signal
        self.forced = False  # to stop without grace
        self.owner = os.getppid()
        self.wake_fd, wake_write_fd = os.pipe()
        for descriptor in (self.wake_fd, wake_write_fd):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write_fd, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_force)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """The command's exit code, negative after a signal. Returns when nothing of it is left."""
        token = os.urandom(16).hex()
        try:
            self._note(token)
            self.child = _spawn(self.options.command, token)
            with contextlib.suppress(OSError):  # a full disk; the first note is enough to find all
                self._note(token)
            stopping = self._wait()
            self._end(self.options.grace_s if stopping else min(ORPHAN_GRACE_S, self.options.grace_s))
        finally:
            if self.options.scratch is not None:
                leftovers.remove_scratch(self.options.scratch)
            with contextlib.suppress(OSError):
                os.unlink(self.options.state)
        return os.waitstatus_to_exitcode(self.status or 0)

    def _on_stop(self, *_: object) -> None:
        self.asked = True

    def _on_force(self, *_: object) -> None:
        self.asked = self.forced = True

    def _note(self, token: str) -> None:
        command = self.options.command
        name = os.path.basename(command[0])
        note = GuardNote(
            boot=proctable.boot_id(),
            token=token,
            command=f"{name}#{zlib.crc32(chr(0).join(command).encode()):08x}",
            owner=Identity.of(self.owner),
            guard=Identity.of(os.getpid()),
            child=Identity.of(self.child) if self.child else None,
            scratch=self.options.scratch,
        )
        leftovers.write_note(self.options.state, note)

    def _wait(self) -> bool:
        """Until there is a reason to end everything; whether it is other than the command's end."""
        while not self.asked:
            self._reap()
            if self.status is not None:
                return False
            ready = self._sleep(None, self.options.pipe_fd)
            if self.options.pipe_fd in ready and not os.read(self.options.pipe_fd, 4096):
                return True
        return True

    def _end(self, grace_s: float) -> None:
        """Returns when no process is left below this one."""
        asked: set[int] = set()
        deadline = time.monotonic() + grace_s
        while self._reap():
            now = time.monotonic()
            force = self.forced or now >= deadline
            for pid in self._below():
                if force:
                    proctable.send(pid, signal.SIGKILL)
                elif pid not in asked:
                    proctable.send(pid, signal.SIGTERM, signal.SIGCONT)
                    asked.add(pid)
            self._sleep(RESWEEP_S if force else min(RESWEEP_S, deadline - now))
        if not proctable.LINUX:
            proctable.send(-self.child, signal.SIGKILL)  # grandchildren that stayed in the group

    def _below(self) -> list[int]:
        if proctable.LINUX:
            return proctable.descendants(os.getpid(), proctable.table())
        return [] if self.status is not None else [-self.child]  # the command's group

    def _reap(self) -> bool:
        """Collects ended children, adopted ones too; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status

    def _sleep(self, timeout_s: float | None, *descriptors: int) -> list[int]:
        """Until a signal, one of the descriptors or the time; the descriptors that are ready."""
        ready, _, _ = select.select([self.wake_fd, *descriptors], [], [], timeout_s)
        if self.wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_fd, 4096)
        return ready


def _spawn(command: list[str], token: str) -> int:
    """Starts the command so that it dies with this process; exits with 126 or 127 if it can't.

    A plain fork is safe here, unlike in the process we guard: this one has a single thread.
    """
    libc = ctypes.CDLL(None, use_errno=True) if proctable.LINUX else None
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    environment = {**os.environ, leftovers.TOKEN_VARIABLE: token}
    failure_fd, failure_write_fd = os.pipe()  # closed by a successful exec
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, environment, libc, guard, failure_write_fd)
    os.close(failure_write_fd)
    with open(failure_fd, "rb") as file:
        failure = file.read()
    if failure:
        code = int(failure)
        print(f"cannot start {command[0]}: {os.strerror(code)}", file=sys.stderr)  # noqa: T201
        os.waitpid(child, 0)
        missing = code in (errno.ENOENT, errno.ENOTDIR)
        raise SystemExit(EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE)
    return child


def _become(
    command: list[str], environment: dict[str, str], libc: ctypes.CDLL | None, guard: int, failure_fd: int
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:  # it died before the kernel was told
                os._exit(1)
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as exc:
        os.write(failure_fd, str(exc.errno).encode())
    finally:
        os._exit(EXIT_NOT_FOUND)


def parse(arguments: list[str]) -> Options:
    """Raises SystemExit with a message for anything but the documented form."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names = arguments[:split:2]
    values = arguments[1:split:2]
    given = dict(zip(names, values, strict=False))
    known = {"--state", "--pipe-fd", "--grace", "--scratch"}
    command = arguments[split + 1 :]
    if len(names) != len(values) or given.keys() - known or not command or "--state" not in given:
        raise SystemExit("usage: guard --state FILE --pipe-fd N [--grace S] [--scratch DIR] -- command...")
    try:
        return Options(
            state=given["--state"],
            pipe_fd=int(given["--pipe-fd"]),
            grace_s=float(given.get("--grace", "5")),
            scratch=given.get("--scratch"),
            command=command,
        )
    except (KeyError, ValueError) as exc:
        raise SystemExit(f"guard: bad or missing value: {exc}") from exc


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    os.set_inheritable(options.pipe_fd, False)
    code = Guard(options).run()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
