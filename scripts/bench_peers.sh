#!/usr/bin/env bash
# Makes .venv-peers/NAME for the programs that benchmarks/gateway_overhead.py compares with, from the pins
# in requirements/peers. With uv where it is on the PATH, else with pip. Linux on x86-64 or arm64.
# Usage: scripts/bench_peers.sh [NAME...]          those (all by default)
#        UV=uv scripts/bench_peers.sh --pin [...]  resolves the pins anew; more arguments go to uv
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --pin ]; then
  shift
  for source in requirements/peers/*.in; do
    "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
      --no-emit-index-url --no-emit-find-links "$source" -o "${source%.in}.txt" "$@" >/dev/null
  done
  exit
fi

names() { (cd requirements/peers && printf '%s ' *.txt | sed 's/\.txt//g'); }

base=${PYTHON:-python3}
# shellcheck disable=SC2048 # names hold no spaces
for name in ${*:-$(names)}; do
  pins=requirements/peers/$name.txt
  venv=.venv-peers/$name
  [ -e "$pins" ] || { echo "No peer $name; there are: $(names)" >&2; exit 1; }
  done=$venv/.pins-$(cksum <"$pins" | tr -d ' ')
  if [ -e "$done" ]; then
    echo "$venv is as pinned"
    continue
  fi
  rm -rf "$venv"
  started=$SECONDS
  if command -v uv >/dev/null; then
    uv venv --quiet --python "$base" "$venv"
    uv pip install --quiet --python "$venv/bin/python" -r "$pins"
  else
    "$base" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$pins"
  fi
  touch "$done"
  echo "$venv: done in $((SECONDS - started)) s"
done
