# Everything a person types here works on Linux and macOS with Python 3.11 or newer, with or without uv.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
PEERS ?=
UV ?= $(shell command -v uv || echo .venv/bin/uv)

VENV := .venv
BIN := $(VENV)/bin
# What is installed is keyed by content, not by dates, so a fresh checkout of the same pins is no change.
KEY := $(shell cat pyproject.toml requirements/*.txt scripts/setup.sh | cksum | tr -d ' ')
RUNTIME := $(VENV)/.runtime-$(KEY)
DEV := $(VENV)/.dev-$(KEY)
COMPILED_VENV := .venv-compiled
COMPILED := $(COMPILED_VENV)/.made-$(shell find src hatch_build.py -name '*.py' -print0 | sort -z | xargs -0 cat | cksum | tr -d ' ')-$(KEY)
# What a request passes through, and what would notice: these tests run against the compiled build too.
COMPILED_TESTS := tests/core tests/wire tests/admission tests/scheduling tests/routing tests/telemetry tests/web \
	tests/engines/openai tests/engines/upstream tests/runtime tests/api tests/dataplane tests/field \
	tests/test_compiled.py

VLLM_VENV := .venv-vllm
VLLM_ENV := $(VLLM_VENV)/.made-$(shell cat requirements/engines/vllm.txt scripts/vllm_env.sh | cksum | tr -d ' ')

RAY_VENV := .venv-ray
RAY_ENV := $(RAY_VENV)/.made-$(shell cat requirements/engines/ray.txt scripts/ray_env.sh | cksum | tr -d ' ')

.PHONY: help setup setup-dev serve test test-engines test-ray bench bench-all bench-peers bench-overhead gpu-experiments compiled test-compiled check fix docs pins vllm-env ray-env clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(RUNTIME) ## Make .venv with what serving needs, the model included
setup-dev: $(DEV) ## The same, with the development tools

serve: $(RUNTIME) ## Serve the embedded model on port 8000 (ARGS="--port 9000")
	@exec $(BIN)/llm-runtime serve $(ARGS)

test: $(DEV) ## Run the tests (ARGS="tests/scheduling -k fair")
	@exec $(BIN)/pytest $(ARGS)

test-engines: $(DEV) vllm-env ## Run the tests of engines that take minutes to start, each on its real engine
	@exec $(BIN)/pytest -m "vllm or hf" -o faulthandler_timeout=1500 $(ARGS)

bench: $(DEV) ## The benchmarks people know, results and curve in benchmarks/results (QUICK=1: short, build/bench)
	@exec $(BIN)/python benchmarks/run_all.py $(if $(QUICK),--quick) $(ARGS)

bench-all: $(DEV) ## Every scenario in full, with its bars: one to two hours on a quiet machine
	@exec $(BIN)/python benchmarks/run_scenarios.py $(ARGS)

gpu-experiments: $(DEV) ## On a host with a GPU: every experiment on vLLM, unattended (ARGS="--model FOLDER")
	@exec scripts/gpu_benchmark.sh --all $(ARGS)

test-ray: $(DEV) ray-env ## Run the tests that need a Ray cluster, which they start and stop
	@exec $(BIN)/pytest -m ray -o faulthandler_timeout=400 $(ARGS)

bench-peers: ## Make .venv-peers/*, the gateways that ours is compared with (PEERS="baseline smg")
	@PYTHON=$(PYTHON) scripts/bench_peers.sh $(PEERS)

bench-overhead: $(DEV) ## What a gateway costs, ours and others' (ARGS="--quick --check"); Linux
	@exec $(BIN)/python benchmarks/gateway_overhead.py $(ARGS)

compiled: $(COMPILED) ## Make .venv-compiled, with the hot path compiled; needs a C compiler

test-compiled: $(COMPILED) ## Run the data plane's tests against the compiled build
	@exec $(COMPILED_VENV)/bin/pytest $(or $(ARGS),$(COMPILED_TESTS))

check: $(DEV) ## Lint, format, types, layers, module size, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_module_size.py src tests scripts benchmarks deploy
	$(BIN)/python scripts/config_docs.py --check
	$(BIN)/python scripts/result_docs.py --check

fix: $(DEV) ## Repair what can be repaired mechanically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/config_docs.py
	$(BIN)/python scripts/result_docs.py

docs: $(DEV) ## Write the generated parts of the documentation
	$(BIN)/python scripts/config_docs.py
	$(BIN)/python scripts/result_docs.py

pins: ## Resolve requirements/*.txt anew; ARGS=--upgrade takes newer versions
	@UV=$(UV) scripts/pins.sh $(ARGS)

vllm-env: $(VLLM_ENV) ## Make .venv-vllm: vLLM on the CPU (2 GB), as its tests and `--backend vllm` use it

ray-env: $(RAY_ENV) ## Make .venv-ray: Ray Serve with llama.cpp (700 MB), as its tests and scenarios use it

clean: ## Remove the environments and every cache
	rm -rf $(VENV) $(COMPILED_VENV) $(VLLM_VENV) $(RAY_VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests scripts benchmarks deploy -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME):
	@PYTHON=$(PYTHON) scripts/setup.sh runtime
	@rm -f $(VENV)/.runtime-* && touch $@

$(DEV):
	@PYTHON=$(PYTHON) scripts/setup.sh dev
	@rm -f $(VENV)/.runtime-* $(VENV)/.dev-* && touch $(RUNTIME) $@

$(COMPILED):
	@PYTHON=$(PYTHON) scripts/setup.sh compiled
	@rm -f $(COMPILED_VENV)/.made-* && touch $@

$(VLLM_ENV):
	@PYTHON=$(PYTHON) scripts/vllm_env.sh
	@rm -f $(VLLM_VENV)/.made-* && touch $@

$(RAY_ENV):
	@PYTHON=$(PYTHON) scripts/ray_env.sh
	@rm -f $(RAY_VENV)/.made-* && touch $@
