"""The wheel's build: pure Python, or with the modules on the hot path compiled where LLM_RUNTIME_COMPILE asks
for it.

The list of modules is in pyproject.toml, mypyc (a part of mypy) makes C of them. Their sources stay in the
wheel beside what was compiled: for people, for tracebacks, and for whoever deletes the other. An editable
installation is never compiled, so nothing that was compiled can be older than its source.

With GCC it can be compiled twice, the second time by what the first one's code was seen to do: as `record`,
with a folder in LLM_RUNTIME_PROFILE; then, after that has served some load, as usual, with the same folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "LLM_RUNTIME_COMPILE"
RECORD = "record"
PROFILE_VARIABLE = "LLM_RUNTIME_PROFILE"
SOURCES = Path("src")
GROUP = "llm_runtime"
LINK_TIME_OPTIMISATION = ["-flto=auto", "-fno-semantic-interposition", "-fvisibility=hidden"]
"""The modules call each other for every token."""
RECORD_PROFILE = ["-fprofile-generate"]
USE_PROFILE = ["-fprofile-use", "-fprofile-correction", "-Wno-missing-profile"]
"""What was not seen at work is made small."""
OFF = frozenset({"", "0", "false", "no", "off"})


def wanted() -> bool:
    return _word() not in OFF


def profile() -> tuple[Path | None, list[str]]:
    """Where what the code was seen to do is kept, if anywhere, and what the compiler is told of it. Raises
    SystemExit where that cannot be."""
    folder = os.environ.get(PROFILE_VARIABLE, "").strip()
    if _word() != RECORD:
        return (Path(folder).absolute(), USE_PROFILE) if folder else (None, [])
    if not folder or not is_gcc():
        raise SystemExit(f"{VARIABLE}={RECORD} needs GCC, and a folder in {PROFILE_VARIABLE}")
    return Path(folder).absolute(), RECORD_PROFILE


def _word() -> str:
    return os.environ.get(VARIABLE, "").strip().lower()


class CompiledModules(BuildHookInterface[Any]):
    """Called by hatchling, once for each build. Does nothing unless it is wanted."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling; a build in isolation installs it."""
        return ["mypy[mypyc]>=1.18"] if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not wanted():
            return
        kept, flags = profile()
        if kept is None:
            self._folder = Path(tempfile.mkdtemp(prefix="llm-runtime-compiled-"))
        folder = kept or self._folder
        made = compile_modules(self.config["modules"], Path(self.root) / SOURCES, folder, flags)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(place) for path, place in made.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


def paths_of(modules: Iterable[str]) -> list[Path]:
    """Of the modules' sources, from the folder that holds the package."""
    return [Path(*name.split(".")).with_suffix(".py") for name in modules]


def compile_modules(
    modules: Iterable[str], sources: Path, folder: Path, flags: Sequence[str] = ()
) -> dict[Path, Path]:
    """What was made, each with its place in the wheel. Works on a copy, so that nothing is left among the
    sources. flags: for GCC, besides the usual ones. A profile is found by the objects' places, so the folder
    has to be the same one. Raises SystemExit, after telling why, where mypyc or the compiler refuses."""
    # Both have to be in this order: mypyc uses setuptools if somebody has loaded it.
    from setuptools import Distribution
    from mypyc.build import mypycify  # isort: skip

    copy, made = folder / "src", folder / "made"
    for earlier in (copy, made):
        shutil.rmtree(earlier, ignore_errors=True)
    shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with contextlib.chdir(copy):
        # From here, so that tracebacks name the sources as they lie below site-packages.
        extensions = mypycify(
            [f"--cache-dir={folder / 'mypy'}", "--ignore-missing-imports", *map(str, paths_of(modules))],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=str(folder / "c"),
            group_name=GROUP,
        )
        if is_gcc():
            for extension in extensions:
                extension.extra_compile_args += [*LINK_TIME_OPTIMISATION, *flags]
                extension.extra_link_args += [*LINK_TIME_OPTIMISATION, *flags]
        command = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib = str(made)
        command.build_temp = str(folder / "objects")
        command.force = True
        command.ensure_finalized()
        command.run()
    return {path: path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()}


def is_gcc() -> bool:
    """Whether the C compiler is GCC, as far as its name says; others want other words."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    return sys.platform == "linux" and "gcc" in Path(compiler.partition(" ")[0]).name


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for place in compile_modules(sys.argv[2:], Path(__file__).parent / SOURCES, out).values():
        sys.stdout.write(f"{place}\n")
