"""GPU telemetry against programs that behave, lie, hang and are not there (field cases F50, F55 g2)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.gpu_readers import NvidiaSmiReader, NvmlReader
from llm_runtime.telemetry.gpu_reading import QUERY_FIELDS, Gpu, GpuReading, GpuUnavailable, parse_nvidia_smi
from tests.telemetry.smi import NORMAL, gone, smi

# ---- nvidia-smi


def test_a_program_that_works(program: Any, tmp_path: Path) -> None:
    program(f"echo \"$@\" > {tmp_path}/arguments\nprintf '{NORMAL}'")
    reading = smi().read().as_dict()
    assert reading["status"] == "available"
    assert reading["source"] == "nvidia-smi"
    assert reading["reason"] is None
    assert reading["gpu_count"] == 2
    assert reading["memory_used_mb"] == 1024
    assert reading["memory_total_mb"] == 2 * 143771
    assert reading["utilization_pct"] == 36.5
    assert reading["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-bb",
        "name": "NVIDIA H200",
        "memory_used_mb": 0.0,
        "memory_total_mb": 143771.0,
        "utilization_pct": 0.0,
        "temperature_c": 31.0,
        "power_w": 75.1,
    }
    asked = (tmp_path / "arguments").read_text().split()
    assert asked == [f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv,noheader,nounits"]


def test_f55_g2_values_that_are_not_available_are_null_and_spoil_no_sum(program: Any) -> None:
    program('echo "0, GPU-aa, NVIDIA GB10, [N/A], [Not Supported], [N/A], 40, [Unknown Error]"')
    reading = smi().read().as_dict()
    assert reading["status"] == "available"
    assert reading["gpu_count"] == 1
    for key in ("memory_used_mb", "memory_total_mb", "utilization_pct"):
        assert reading[key] is None
    assert reading["gpus"][0]["temperature_c"] == 40
    assert reading["gpus"][0]["power_w"] is None


def test_a_sum_over_some_devices_is_not_passed_off_as_the_whole() -> None:
    reading = GpuReading("available", "nvml", None, (Gpu(0, memory_used_mb=100), Gpu(1)))
    assert reading.as_dict()["memory_used_mb"] is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo hello", "not a table"),
        ("printf ''", "printed nothing"),
        ("echo 0, a, b, 1", "not a table"),
        ("echo zero, GPU, name, 1, 2, 3, 4, 5", "not a table"),
        ("echo '0, \"GPU, name, 1, 2, 3, 4, 5'", "not a table"),
        ("head -c 3000 /dev/urandom", "nvidia-smi printed"),
        ("cat /dev/zero", "printed more than a table"),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "ended with code 9: NVIDIA-SMI has failed"),
        ("kill -SEGV $$", "ended with code -11"),
    ],
)
def test_a_program_that_does_not_work(program: Any, script: str, reason: str) -> None:
    program(script)
    reading = smi().read().as_dict()
    assert reading["status"] == "unavailable"
    assert reading["source"] is None
    assert reason in reading["reason"]
    assert reading["gpu_count"] == 0
    assert reading["gpus"] == []
    assert reading["memory_used_mb"] is None


def test_a_program_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smi().read().reason == "nvidia-smi is not installed"


def test_a_program_that_cannot_be_run(program: Any) -> None:
    program("true").write_bytes(b"\x7fELF nonsense")
    assert "cannot be run" in (smi().read().reason or "")


def test_a_program_that_hangs_is_killed_with_its_children(program: Any, tmp_path: Path) -> None:
    program(f"sleep 30 & echo $! > {tmp_path}/child\nwait")
    started_at = time.monotonic()
    reading = smi(timeout_s=0.5).read()
    assert time.monotonic() - started_at < 5
    assert reading.reason == "nvidia-smi did not end within 0.5 s"
    assert gone(int((tmp_path / "child").read_text()))


def test_a_program_that_prints_and_then_hangs(program: Any) -> None:
    program(f"printf '{NORMAL}'\nexec sleep 30 >&-")
    assert "did not end" in (smi(timeout_s=0.5).read().reason or "")


def test_a_program_that_ends_while_its_child_holds_the_pipe(program: Any) -> None:
    program(f"sleep 30 &\nprintf '{NORMAL}'")
    assert "did not end" in (smi(timeout_s=0.5).read().reason or "")


def test_closing_stops_the_program_under_way(program: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    program(f"echo $$ > {tmp_path}/started\nexec sleep 30")
    reader = NvidiaSmiReader(timeout_s=20)
    reasons: list[str] = []

    def read() -> None:
        try:
            reader.read()
        except GpuUnavailable as error:
            reasons.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    pid = int((tmp_path / "started").read_text())
    reader.close()
    thread.join(10)
    assert reasons == ["nvidia-smi ended with code -9"]
    assert gone(pid)
    with pytest.raises(GpuUnavailable, match="stopping"):
        reader.read()


@given(st.text(max_size=300))
def test_any_text_is_a_table_or_a_reason(text: str) -> None:
    try:
        outcome: object = parse_nvidia_smi(text)
    except GpuUnavailable as error:
        outcome = str(error)
    assert outcome


# ---- NVML


class NVMLError(Exception):
    """Stands for pynvml's."""


class NotSupported(NVMLError):
    pass


class FakeNvml:
    """Looks like the module pynvml in front of a driver we make up."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupported
    NVMLError_NoPermission = type("NoPermission", (NVMLError,), {})
    NVMLError_FunctionNotFound = type("FunctionNotFound", (NVMLError,), {})
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, *, num_gpus: int = 1) -> None:
        self.num_gpus = num_gpus
        self.calls: list[str] = []
        self.lost = False
        self.old_driver = False
        self.mig = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.lost:
            raise NVMLError("GPU is lost")
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> Any:  # noqa: N802
        if version == 2 and self.old_driver:
            raise self.NVMLError_FunctionNotFound("old")
        used = 1 if version == 2 else 2
        return SimpleNamespace(used=used << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if self.mig:
            raise NotSupported("MIG")
        return SimpleNamespace(gpu=55)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 123_400

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "Made up"

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 44


def test_the_library_is_started_once_and_asked_each_time() -> None:
    nvml = FakeNvml(num_gpus=2)
    reader = NvmlReader(nvml)
    assert reader.read() == reader.read()
    assert nvml.calls == ["init"]
    assert reader.read()[1] == Gpu(1, "GPU-1", "Made up", 1024, 80 * 1024, 55, 44, 123.4)


def test_what_a_device_does_not_tell_is_null_and_old_drivers_are_asked_the_old_way() -> None:
    nvml = FakeNvml()
    nvml.mig = nvml.old_driver = True
    (gpu,) = NvmlReader(nvml).read()
    assert gpu.utilization_pct is None
    assert gpu.memory_used_mb == 2048


def test_a_lost_device_is_unavailable_and_found_again_after_a_new_start() -> None:
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    reader.read()
    nvml.lost = True
    with pytest.raises(GpuUnavailable, match="GPU is lost"):
        reader.read()
    nvml.lost = False
    assert len(reader.read()) == 1
    assert nvml.calls == ["init", "shutdown", "init"]


def test_no_device_is_unavailable() -> None:
    with pytest.raises(GpuUnavailable, match="no GPU"):
        NvmlReader(FakeNvml(num_gpus=0)).read()


def test_this_machine_has_gpus_or_a_reason() -> None:
    """The real library and the real program, whatever there is of them here."""
    reading = NvidiaSmiSampler(1.0).read()
    if reading.available:
        assert reading.gpus
        assert reading.source in ("nvml", "nvidia-smi")
    else:
        assert reading.reason is not None
        assert reading.reason.startswith("NVML: ")
        assert "nvidia-smi" in reading.reason
