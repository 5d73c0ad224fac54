#!/usr/bin/env bash
# Makes .venv-vllm: vLLM on the CPU and this project (editable), apart from .venv because vLLM pins what we
# do not. With uv where it is on the PATH, else with pip.
#   scripts/vllm_env.sh              installs the pins of requirements/engines/vllm.txt
#   scripts/vllm_env.sh --upgrade    resolves requirements/engines/vllm.in anew and writes the pins (uv only)
# PyTorch's CPU builds are not on PyPI. pip finds them where PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL say; uv
# knows their place by itself, unless PIP_FIND_LINKS names one.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
python=$venv/bin/python
pins=requirements/engines/vllm.txt
started=$SECONDS

# Asked for by vLLM, never used by what is tested here: the GPU's compiler (1 GB), and companions of torch
# that exist for GPUs only, against which the CPU build of torch cannot be imported.
unused=(triton torchvision torchaudio torchcodec)

base=${PYTHON:-python3}
if command -v uv >/dev/null; then
  [ -e $venv ] || uv venv --quiet --python "$base" $venv
  links=(--torch-backend cpu)
  [ -z "${PIP_FIND_LINKS:-}" ] || links=(--find-links "$PIP_FIND_LINKS")
  install() { uv pip install --quiet --python $python "${links[@]}" "$@"; }
else
  [ -e $venv ] || "$base" -m venv $venv
  install() { $python -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
fi

if [ "${1:-}" = --upgrade ]; then
  install --upgrade -r requirements/engines/vllm.in
  uv pip uninstall --quiet --python $python "${unused[@]}"
  uv pip freeze --quiet --python $python --exclude-editable >$pins
else
  echo "Setting up $venv (2 GB)"
  install --no-deps -r $pins || {
    echo "If it is torch that was not found: let PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL name a place that" >&2
    echo "has PyTorch's CPU builds (see pytorch.org, \"Get started\", CPU)" >&2
    exit 1
  }
fi
install --no-deps --no-build-isolation --editable .
$python -W ignore -c 'import vllm; print("vLLM", vllm.__version__)'
echo "Done in $((SECONDS - started)) s"
