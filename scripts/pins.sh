#!/usr/bin/env bash
# Resolves the pins for every Python and system we support. Keeps pins that still fit; --upgrade does not.
# Usage: UV=uv scripts/pins.sh [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links "$@" >/dev/null
}

compile pyproject.toml -o requirements/runtime.txt "$@"
compile pyproject.toml --group dev -c requirements/runtime.txt -o requirements/dev.txt "$@"
compile --group build -c requirements/dev.txt -o requirements/build.txt "$@"
compile --group compile -c requirements/dev.txt -o requirements/compile.txt "$@"
compile --group openai2 -o requirements/openai2.txt "$@"
