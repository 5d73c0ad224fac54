"""`EngineProcess`: an engine program under its guard, its output, its readiness and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from llm_runtime.core.errors import BackendUnavailable, ConfigError, LLMRuntimeError
from llm_runtime.engines import leftovers, proctable
from llm_runtime.engines.guard import EXIT_CONFIG, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from llm_runtime.engines.output import LineSink, OutputLines

T = TypeVar("T")

FORCED_END_S = 5.0  # SIGKILL needs no longer, short of a process stuck in the kernel
OUTPUT_TAIL_S = 0.5  # for output that is still in the pipes when the process has ended


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """command: argv, without secrets: everybody on the machine can read it.

    environment: the whole of it; secrets go here. name: a word for files and messages.
    state_dir: existing directory for the guard's note. grace_s: between SIGTERM and SIGKILL.
    scratch: a private directory that is removed when the engine has ended, however that happens.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    state_dir: Path
    grace_s: float = 5.0
    scratch: Path | None = None


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How an engine ended. code: 0 to 255, 128 + n after signal n. lines: its last output."""

    name: str
    code: int
    lines: tuple[str, ...]

    @property
    def is_config_error(self) -> bool:
        """Whether the same start can only fail again."""
        return self.code in (EXIT_CONFIG, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND)

    @property
    def public_reason(self) -> str:
        """For clients and health answers: no paths, nothing the engine printed."""
        if self.code == EXIT_NOT_FOUND:
            return f"the program of the {self.name} engine was not found"
        if self.code == EXIT_NOT_EXECUTABLE:
            return f"the program of the {self.name} engine cannot be executed"
        if self.code == EXIT_CONFIG:
            return f"the {self.name} engine refused its configuration"
        if self.code > 128 and self.code - 128 in set(signal.Signals):
            return f"the {self.name} engine was ended by {signal.Signals(self.code - 128).name}"
        return f"the {self.name} engine exited with code {self.code}"

    @property
    def detail(self) -> str:
        """For the log of the operator: the reason and the last lines."""
        return "\n".join((self.public_reason, *self.lines))

    def error(self) -> LLMRuntimeError:
        """To raise for a start that failed: ConfigError or BackendUnavailable, with the lines as note."""
        kind = ConfigError if self.is_config_error else BackendUnavailable
        error = kind(self.public_reason, reason="engine_start_failed")
        error.add_note(self.detail)
        return error


class EngineProcess:
    """Owned by the task that started it, which must `stop` it; used from the loop's thread.

    If that task never gets so far, the guard ends the engine as soon as this process is gone.
    """

    def __init__(self, spec: ProcessSpec, on_line: LineSink | None, on_exit: Callable[[int], None] | None):
        self.spec = spec
        self.output = OutputLines(on_line)
        self._on_exit = on_exit
        self._exited: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._pipe_fd: int | None = None
        self._note_path = spec.state_dir / f"{spec.name}-{uuid.uuid4().hex[:12]}.json"

    @classmethod
    async def start(
        cls,
        spec: ProcessSpec,
        on_line: LineSink | None = None,
        on_exit: Callable[[int], None] | None = None,
    ) -> EngineProcess:
        """Starts guard and engine; returns before the engine is ready.

        on_line(stream, line): each line of "stdout" and "stderr". on_exit(code): once, at its end.
        Call from the loop's thread. Raises BackendUnavailable if no process can be made.
        """
        process = cls(spec, on_line, on_exit)
        await process._spawn()
        return process

    @property
    def pid(self) -> int:
        """The guard's; 0 before it was started."""
        return (self._transport.get_pid() or 0) if self._transport is not None else 0

    @property
    def running(self) -> bool:
        return not self._exited.done()

    @property
    def exit_report(self) -> ExitReport | None:
        return self._exited.result() if self._exited.done() else None

    @property
    def alive(self) -> bool:
        """Like `running`, but asks the system about the engine itself: the guard's word for its end
        comes some milliseconds after it. A few system calls."""
        if not self.running:
            return False
        note = leftovers.read_note(str(self._note_path))
        child = note.child if note is not None else None
        return child is not None and proctable.is_working(child.pid, child.started)

    async def wait(self) -> ExitReport:
        """Until the engine has ended and nothing of it is left."""
        report = await asyncio.shield(self._exited)
        if self._note_path.exists():  # the guard did not live to clean up
            await asyncio.to_thread(leftovers.remove_leftover, str(self._note_path))
        return report

    async def wait_ready(self, probe: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """What `probe` returns, if it does so while this very engine lives.

        Raises what `ExitReport.error` makes as soon as the engine ends, BackendUnavailable after
        timeout_s, and whatever the probe raises. The engine is not stopped.
        """
        probing = asyncio.ensure_future(probe())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait((probing, self._exited), timeout=timeout_s, return_when=first)
            if self._exited.done():
                raise self._exited.result().error()
            if probing.done():
                return probing.result()
            message = f"the {self.spec.name} engine was not ready within {timeout_s:g} s"
            error = BackendUnavailable(message, reason="engine_start_timeout")
            error.add_note("\n".join(self.output.last()))
            raise error
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def stop(self, grace_s: float | None = None) -> ExitReport:
        """Asks the engine to end, ends it by force after grace_s (the spec's by default). Idempotent.

        Cancelling it forces the end without waiting for it.
        """
        try:
            self._signal(signal.SIGTERM)
            report = await self._ended_within(self.spec.grace_s if grace_s is None else grace_s)
            if report is None:
                self.kill()
                report = await self._ended_within(FORCED_END_S)
            if report is None:  # the guard itself is stuck: the kernel and the note take over
                self._signal(signal.SIGKILL)
        except asyncio.CancelledError:
            self.kill()
            raise
        return await self.wait()

    def kill(self) -> None:
        """Ends the engine and all it started by SIGKILL; does not wait."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGUSR1)

    async def _ended_within(self, timeout_s: float) -> ExitReport | None:
        await asyncio.wait((self._exited,), timeout=timeout_s)
        return self.exit_report

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self._transport is not None:
            with contextlib.suppress(ProcessLookupError):
                self._transport.send_signal(number)

    async def _spawn(self) -> None:
        read_fd, self._pipe_fd = os.pipe()
        spec = self.spec
        scratch = ("--scratch", str(spec.scratch)) if spec.scratch is not None else ()
        guard = (sys.executable, "-P", "-m", "llm_runtime.engines.guard")
        options = ("--state", str(self._note_path), "--pipe-fd", str(read_fd), "--grace", f"{spec.grace_s:g}")
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Listener(self),
                *(*guard, *options, *scratch, "--", *spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(spec.environment),
                pass_fds=(read_fd,),
                start_new_session=True,
            )
        except BaseException as exc:
            self._close_pipe()
            if spec.scratch is not None:
                leftovers.remove_scratch(str(spec.scratch))
            if isinstance(exc, OSError):
                raise BackendUnavailable(f"the {spec.name} engine could not be started") from exc
            raise
        finally:
            os.close(read_fd)
        self._transport = transport

    def _ended(self, returncode: int) -> None:
        """Called by the listener, once there can be no more output worth waiting for."""
        if self._exited.done():
            return
        self._close_pipe()
        self.output.close()
        code = returncode if returncode >= 0 else 128 - returncode
        self._exited.set_result(ExitReport(self.spec.name, code, self.output.last()))
        if self._on_exit is not None:
            self._on_exit(code)

    def _close_pipe(self) -> None:
        if self._pipe_fd is not None:
            os.close(self._pipe_fd)
            self._pipe_fd = None


class _Listener(asyncio.SubprocessProtocol):
    """What the loop tells of one child process; no task, no stream reader."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._transport: asyncio.SubprocessTransport | None = None
        self._tail: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if isinstance(data, bytes):
            self._process.output.feed("stdout" if fd == 1 else "stderr", data)

    def process_exited(self) -> None:
        # Survivors of a killed guard may hold the pipes open: do not wait for their end.
        self._tail = asyncio.get_running_loop().call_later(OUTPUT_TAIL_S, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._tail is not None:
            self._tail.cancel()
        transport = self._transport
        if transport is not None:
            self._transport = None
            code = transport.get_returncode()
            transport.close()
            self._process._ended(code if code is not None else 128)


def child_environment(parent: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An engine's environment: the parent's without our own settings, which hold keys, plus extra."""
    kept = {name: value for name, value in parent.items() if not name.startswith("LLM_RUNTIME_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


def scratch_directory(parent: str | None = None) -> Path:
    """A fresh directory that only we can enter, with a short path: Unix sockets allow about 100
    characters. Name it in `ProcessSpec.scratch`, so that it is removed whatever happens."""
    return Path(tempfile.mkdtemp(prefix="engine-", dir=parent))


def ensure_port_free(host: str, port: int, setting: str) -> None:
    """Raises ConfigError, naming port and setting, if somebody listens there already: his answers
    must not be taken for those of an engine that could not bind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as exc:
            message = f"port {port} is taken by another program; choose another one with {setting}"
            raise ConfigError(message, reason="port_in_use") from exc
