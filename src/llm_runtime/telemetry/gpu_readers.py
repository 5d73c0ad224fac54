"""The two ways to GPU numbers: the driver's library, and the program that prints them.

Both block, so both run in the sampler's thread. Neither raises anything but GpuUnavailable for what a
driver, a device or a program may do.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from llm_runtime.telemetry.gpu_reading import QUERY_FIELDS, Gpu, GpuUnavailable, parse_nvidia_smi

SMI_TIMEOUT_S = 2.0
MAX_OUTPUT_BYTES = 1 << 20
MIB = 1 << 20


class GpuReader(Protocol):
    """One way to the numbers. `read` blocks and runs in a thread, one at a time."""

    source: str

    def read(self) -> tuple[Gpu, ...]:
        """Raises GpuUnavailable."""
        ...

    def close(self) -> None:
        """From the loop's thread, at the end: what `read` started is stopped, and it starts no more."""
        ...


class NvmlReader:
    """Asks the driver's own library. `nvml`: the module `pynvml`, or one that looks like it."""

    source = "nvml"

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._initialized = False

    def read(self) -> tuple[Gpu, ...]:
        if self._nvml is None:
            import pynvml  # type: ignore[import-untyped]

            self._nvml = pynvml
        nvml = self._nvml
        try:
            if not self._initialized:
                nvml.nvmlInit()
                self._initialized = True
            gpus = tuple(self._gpu(index) for index in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            self._forget()
            raise GpuUnavailable(f"NVML: {error}") from None
        if not gpus:
            raise GpuUnavailable("NVML: no GPU")
        return gpus

    def _forget(self) -> None:
        """After an error, a lost or reset device for one, only a new start sees the truth again."""
        if self._initialized:
            self._initialized = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _gpu(self, index: int) -> Gpu:
        nvml, ask = self._nvml, self._ask
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        # Version 2 counts like nvidia-smi does: what the driver reserves for itself is not "used".
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        memory = memory or ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Gpu(
            index=index,
            uuid=ask(lambda: nvml.nvmlDeviceGetUUID(handle)),
            name=ask(lambda: nvml.nvmlDeviceGetName(handle)),
            memory_used_mb=memory.used / MIB if memory else None,
            memory_total_mb=memory.total / MIB if memory else None,
            utilization_pct=rates.gpu if rates else None,
            temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=milliwatts / 1000 if milliwatts is not None else None,
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """None where this device, driver or user does not get an answer; other errors go through."""
        nvml = self._nvml
        try:
            return question()
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):
            return None

    def close(self) -> None:
        """Nothing: the library is the process's, and shutting it down could hang with the driver."""


class NvidiaSmiReader:
    """Runs the program and reads its table; kills it, with all it started, after `timeout_s`."""

    source = "nvidia-smi"

    def __init__(self, program: str = "nvidia-smi", timeout_s: float = SMI_TIMEOUT_S) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def read(self) -> tuple[Gpu, ...]:
        path = shutil.which(self._program)
        if path is None:
            raise GpuUnavailable("nvidia-smi is not installed")
        deadline = time.monotonic() + self._timeout_s
        child = self._spawn(path)
        try:
            output = _read_all(child, deadline)
            code = child.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            raise GpuUnavailable(f"nvidia-smi did not end within {self._timeout_s:g} s") from None
        finally:
            self._end(child)
        text = output.decode("utf-8", "replace")
        if code != 0:
            said = " ".join(text.split())[:200]
            raise GpuUnavailable(f"nvidia-smi ended with code {code}" + (f": {said}" if said else ""))
        return parse_nvidia_smi(text)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._child is not None:
                _kill_group(self._child)

    def _spawn(self, path: str) -> subprocess.Popen[bytes]:
        arguments = [path, f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv,noheader,nounits"]
        with self._lock:
            if self._closed:
                raise GpuUnavailable("the server is stopping")
            try:
                self._child = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise GpuUnavailable(f"nvidia-smi cannot be run: {error.strerror}") from None
            return self._child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Leaves nothing of it behind, whether it ended or not."""
        assert child.stdout is not None
        child.stdout.close()
        if child.returncode is None:
            _kill_group(child)
            # A process stuck in the driver does not even die of SIGKILL: it is not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
        with self._lock:
            self._child = None


def _read_all(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Its output, up to the end of file. Raises TimeoutExpired, GpuUnavailable where it is too much."""
    assert child.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise subprocess.TimeoutExpired(child.args, 0)
            chunk = os.read(child.stdout.fileno(), 65536)
            if not chunk:
                return bytes(output)
            output += chunk
            if len(output) > MAX_OUTPUT_BYTES:
                raise GpuUnavailable("nvidia-smi printed more than a table")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
