"""The wheel's build: pure Python, or with the modules on the hot path compiled where LLM_RUNTIME_COMPILE asks
for it.

The list of modules is in pyproject.toml, mypyc (a part of mypy) makes C of them. Their sources stay in the
wheel beside what was compiled: for people, for tracebacks, and for whoever deletes the other. An editable
installation is never compiled, so nothing that was compiled can be older than its source.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "LLM_RUNTIME_COMPILE"
SOURCES = Path("src")
GROUP = "llm_runtime"
LINK_TIME_OPTIMISATION = ["-flto=auto", "-fno-semantic-interposition", "-fvisibility=hidden"]
"""The modules call each other for every token."""
OFF = frozenset({"", "0", "false", "no", "off"})


def wanted() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() not in OFF


class CompiledModules(BuildHookInterface[Any]):
    """Called by hatchling, once for each build. Does nothing unless it is wanted."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling; a build in isolation installs it."""
        return ["mypy[mypyc]>=1.18"] if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not wanted():
            return
        self._folder = Path(tempfile.mkdtemp(prefix="llm-runtime-compiled-"))
        made = compile_modules(self.config["modules"], Path(self.root) / SOURCES, self._folder)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(place) for path, place in made.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


def paths_of(modules: Iterable[str]) -> list[Path]:
    """Of the modules' sources, from the folder that holds the package."""
    return [Path(*name.split(".")).with_suffix(".py") for name in modules]


def compile_modules(modules: Iterable[str], sources: Path, folder: Path) -> dict[Path, Path]:
    """What was made, each with its place in the wheel. Works on a copy, so that nothing is left among the
    sources. Raises SystemExit, after telling why, where mypyc or the compiler refuses."""
    # Both have to be in this order: mypyc uses setuptools if somebody has loaded it.
    from setuptools import Distribution
    from mypyc.build import mypycify  # isort: skip

    copy, made = folder / "src", folder / "made"
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
        if _is_gcc():
            for extension in extensions:
                extension.extra_compile_args += LINK_TIME_OPTIMISATION
                extension.extra_link_args += LINK_TIME_OPTIMISATION
        command = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib = str(made)
        command.build_temp = str(folder / "objects")
        command.ensure_finalized()
        command.run()
    return {path: path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()}


def _is_gcc() -> bool:
    """Whether the C compiler is GCC, as far as its name says; others want other words."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    return sys.platform == "linux" and "gcc" in Path(compiler.partition(" ")[0]).name


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for place in compile_modules(sys.argv[2:], Path(__file__).parent / SOURCES, out).values():
        sys.stdout.write(f"{place}\n")
