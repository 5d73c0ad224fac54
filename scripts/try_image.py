"""The image's build and its life, without Docker: the Dockerfile's own lines, run in a temporary folder.

Usage: python3 scripts/try_image.py [TARGET ...], by default runtime and bench. What .dockerignore lets
through is all that the steps see. /opt/llm-runtime becomes a temporary folder; everything else of a final
stage is read and obeyed: its environment, its command, its health check, its signal. Needs Linux, and
neither root nor Docker. Lines that change the system (packages, users) are named and skipped; whether the
libraries that the packages bring suffice is checked.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "/opt/llm-runtime"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
SYSTEM = ("groupadd", "apt-get update")
LIBRARIES = {
    # What every Debian image has, and what packages of the Dockerfile add.
    "": {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1",
         "libstdc++.so.6", "libz.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "linux-vdso.so.1"},
    "libgomp1": {"libgomp.so.1"},
}  # fmt: skip
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "PIP_", "SSL_", "HTTP", "http", "no_proxy", "NO_PROXY")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Line:
    """One instruction: its word and the rest, continuations joined."""

    word: str
    rest: str

    @property
    def argv(self) -> list[str]:
        """Of the exec form. Raises ValueError for the shell form."""
        words: list[str] = json.loads(self.rest)
        return words


@dataclass
class Stage:
    base: str
    lines: list[Line] = field(default_factory=list)


def stages(dockerfile: str) -> dict[str, Stage]:
    """By name, in order. Every stage must have one."""
    found: dict[str, Stage] = {}
    joined = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    for line in joined.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, name = rest.split(" AS ")
            found[name] = Stage(base)
        elif word and found:
            found[list(found)[-1]].lines.append(Line(word, " ".join(rest.split())))
    return found


def chain(all_stages: dict[str, Stage], target: str) -> list[Line]:
    """The target's lines, after those of the stages it is made from."""
    stage = all_stages[target]
    before = chain(all_stages, stage.base) if stage.base in all_stages else []
    return [*before, *stage.lines]


def needed(all_stages: dict[str, Stage], target: str) -> Iterator[str]:
    """Stages whose files the target copies."""
    for line in chain(all_stages, target):
        if line.word == "COPY" and line.rest.startswith("--from="):
            yield line.rest.split()[0].removeprefix("--from=")


def ignored(path: str, patterns: list[str]) -> bool:
    """As Docker reads .dockerignore, as far as our file goes: the last pattern that fits decides; one that
    fits a folder fits what is below."""
    verdict = False
    places = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for pattern in patterns:
        wanted = pattern.removeprefix("!").rstrip("/")
        globs = (wanted, wanted.removeprefix("**/")) if wanted.startswith("**/") else (wanted,)
        anywhere = wanted.startswith("**/")
        if any(
            fnmatch.fnmatchcase(Path(place).name if anywhere else place, glob)
            for place in places
            for glob in globs
            if anywhere or glob == "*" or glob.count("/") == place.count("/")
        ):
            verdict = not pattern.startswith("!")
    return verdict


def context(folder: Path) -> None:
    """Copies what a build of this checkout would be given: committed and new files that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for name in listed.stdout.splitlines():
        if not ignored(name, patterns) and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)


def build(all_stages: dict[str, Stage], name: str, folder: Path, done: list[str]) -> None:
    """Runs the COPY and RUN lines of a build stage, after those of the stage it is made from. Stages that
    are done are not repeated: what they made is there."""
    prefix, given, work = (folder / part for part in ("prefix", "context", "build"))
    if name in done or name not in all_stages:
        return
    build(all_stages, all_stages[name].base, folder, done)
    done.append(name)
    for line in all_stages[name].lines:
        if line.word == "COPY":
            *sources, target = line.rest.split()
            for source in sources:
                where = work / target / (source if target == "./" else "")
                if (given / source).is_dir():
                    shutil.copytree(given / source, work / target, dirs_exist_ok=True)
                else:
                    where.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(given / source, where)
        elif line.word == "RUN" and line.rest.startswith(SYSTEM):
            say(f"   skipped: {line.rest.partition(' ')[0]} ...")
        elif line.word == "RUN":
            say(f"   {line.rest}")
            command = line.rest.replace(PREFIX, str(prefix))
            subprocess.run(["/bin/sh", "-c", command], cwd=work, env=environment({}), check=True)
        elif line.word != "WORKDIR":
            raise SystemExit(f"{name}: {line.word} is not understood here")


def environment(more: dict[str, str]) -> dict[str, str]:
    """Nothing of this machine but what an installation needs."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
    return {**kept, "PIP_NO_CACHE_DIR": "", **more}


def settings(lines: list[Line], prefix: Path) -> dict[str, str]:
    """What the image's ENV lines set."""
    found: dict[str, str] = {}
    for line in lines:
        if line.word == "ENV":
            for pair in shlex.split(line.rest):
                name, _, value = pair.partition("=")
                found[name] = value.replace(PREFIX, str(prefix)).replace("${PATH}", os.environ["PATH"])
    return found


def last(lines: list[Line], word: str) -> Line:
    return [line for line in lines if line.word == word][-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def live(lines: list[Line], prefix: Path, cache: Path) -> None:
    """Starts the image's command without keys, which must be refused, and with one; asks the health check
    until it is content, stops it as Docker would."""
    env = environment({**settings(lines, prefix), "LLM_RUNTIME_CACHE": str(cache)})
    env["LLM_RUNTIME_PORT"] = str(free_port())
    command = [*last(lines, "ENTRYPOINT").argv, *last(lines, "CMD").argv]
    bare = subprocess.run(command, env=env, cwd=cache, capture_output=True, text=True, check=False)
    if bare.returncode != 2 or "LLM_RUNTIME_API_KEYS" not in bare.stderr:
        raise SystemExit(f"without keys: status {bare.returncode}\n{bare.stderr}")
    env["LLM_RUNTIME_API_KEYS"] = "sk-trial"
    check = json.loads(last(lines, "HEALTHCHECK").rest.partition(" CMD ")[2])
    process = subprocess.Popen(command, env=env, cwd=cache, start_new_session=True)
    try:
        started_at = time.monotonic()
        while subprocess.run(check, env=env, capture_output=True, check=False).returncode != 0:
            if process.poll() is not None or time.monotonic() - started_at > START_LIMIT_S:
                raise SystemExit(f"not healthy; the server's status is {process.returncode}")
            time.sleep(0.2)
        say(f"   healthy after {time.monotonic() - started_at:.1f} s")
        process.send_signal(signal.Signals[last(lines, "STOPSIGNAL").rest])
        status = process.wait(STOP_LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        raise SystemExit(f"ended with status {status}")
    if subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0:
        raise SystemExit("the health check is content with a server that is gone")


def foreign_libraries(prefix: Path) -> set[str]:
    """Shared libraries that something in the environment needs and the environment does not have."""
    wanted: set[str] = set()
    for path in prefix.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
            for line in said.splitlines():
                name, _, place = line.strip().partition(" ")
                if str(prefix) not in place:
                    wanted.add(Path(name).name)
    return wanted - {"statically"}


def check_libraries(lines: list[Line], prefix: Path) -> None:
    """That the image has them: here they may be there by chance."""
    packages = {word for line in lines if line.word == "RUN" for word in line.rest.split()} & set(LIBRARIES)
    there = LIBRARIES[""].union(*(LIBRARIES[name] for name in packages))
    if missing := foreign_libraries(prefix) - there:
        raise SystemExit(
            f"the image lacks {sorted(missing)}: install their packages, and say so in LIBRARIES"
        )


def try_target(target: str, folder: Path, done: list[str]) -> None:
    all_stages = stages((ROOT / "Dockerfile").read_text())
    lines = chain(all_stages, target)
    prefix = folder / "prefix"
    started_at = time.monotonic()
    for name in needed(all_stages, target):
        build(all_stages, name, folder, done)
    for line in lines:
        if line.word == "RUN":
            if not line.rest.startswith(SYSTEM):
                raise SystemExit(f"{target}: {line.rest} is not understood here")
            say(f"   skipped: {line.rest.partition(' ')[0]} ...")
    check_libraries(lines, prefix)
    say(f"   built in {time.monotonic() - started_at:.1f} s")
    if last(lines, "HEALTHCHECK").rest != "NONE":
        live(lines, prefix, folder / "cache")
        return
    command = [*last(lines, "ENTRYPOINT").argv, *last(lines, "CMD").argv]
    env = environment(settings(lines, prefix))
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    say(f"   {shlex.join(command)}: done")


def main() -> None:
    done: list[str] = []
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        folder = Path(name).resolve()
        for part in ("context", "build", "cache"):
            (folder / part).mkdir()
        context(folder / "context")
        for target in sys.argv[1:] or ("runtime", "bench"):
            say(f"== image {target}")
            try_target(target, folder, done)


if __name__ == "__main__":
    main()
