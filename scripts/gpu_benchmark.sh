#!/usr/bin/env bash
# The native-concurrency experiment on a GPU host, unattended: vLLM behind the runtime, 8 clients, 32 requests
# of 32 tokens, 1 request in flight to the engine against 8, every repeat on the same two servers.
#
#   scripts/gpu_benchmark.sh                            Qwen2.5-0.5B-Instruct, fetched by vLLM
#   scripts/gpu_benchmark.sh --model /models/qwen       a folder on this host
#   scripts/gpu_benchmark.sh --dummy-weights            its shape without weights: nothing is fetched
#   scripts/gpu_benchmark.sh --all                      all experiments of benchmarks/gpu_experiments.py after it:
#                                                       Transformers against vLLM, max_num_seqs, share of the
#                                                       GPU's memory, precisions; some hours (make gpu-experiments)
#
# Other options: --python PROGRAM   of the environment with vLLM (default: $VLLM_PYTHON, .venv-gpu, python3)
#   --repeats N (8; a p95 needs 200 requests in all)   --limit SECONDS (600, for the experiment itself)
#   --output FOLDER (benchmarks/results)   --cpu: a trial without a GPU   --dry-run: say what would be run
#   with --all: --awq-model MODEL (the same weights as a checkpoint of AWQ; else made by rounding)
#   --quick (small sizes)   --each-limit SECONDS (3600, for each of them)
#
# Writes gpu-native-concurrency.json (versions, commit, GPU, command, every run) and .html, with --all also
# gpu-engines.json and gpu-vllm-*.json; prints the tables. Exit status: 0 done, 1 failed, 2 wrong usage or
# nothing to run it with, 124 not done in time.
set -euo pipefail
cd "$(dirname "$0")/.."

model=Qwen/Qwen2.5-0.5B-Instruct
python=${VLLM_PYTHON:-}
dummy='' cpu='' dry='' layers=24 repeats=8 limit=600 output=''
requests=32 clients=8 tokens=32
all='' awq='' quick='' each_limit=3600

fail() { echo "gpu_benchmark: $1" >&2; exit "${2:-1}"; }
value() { [ $# -ge 2 ] || fail "$1 needs a value" 2; echo "$2"; }
while [ $# -gt 0 ]; do
  case $1 in
    --model) model=$(value "$@"); shift ;;
    --python) python=$(value "$@"); shift ;;
    --repeats) repeats=$(value "$@"); shift ;;
    --limit) limit=$(value "$@"); shift ;;
    --output) output=$(value "$@"); shift ;;
    --layers) layers=$(value "$@"); shift ;; # of dummy weights, for a trial
    --awq-model) awq=$(value "$@"); shift ;;
    --each-limit) each_limit=$(value "$@"); shift ;;
    --all) all=1 ;;
    --quick) quick=1 ;;
    --dummy-weights) dummy=1 ;;
    --cpu) cpu=1 ;;
    --dry-run) dry=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
    *) fail "unknown option $1 (--help lists them)" 2 ;;
  esac
  shift
done
if [ -z "$output" ]; then
  output=benchmarks/results
  [ -z "$cpu" ] || output=build/gpu-benchmark # of a trial: nothing for the record
fi

run() { # run COMMAND...: says it, and does it unless this is a dry run
  printf '+'
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_./=,:-]*) printf ' %q' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  [ -n "$dry" ] || "$@"
}

# --- what is there

if [ -z "$cpu" ]; then
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  elif [ -n "$dry" ]; then
    echo "no GPU here; a real run would end now"
  else
    fail "nvidia-smi finds no GPU (--cpu tries everything without one)" 2
  fi
fi

# Ours, with the harness's extras. Its making is not in the time limit.
if ! .venv/bin/python -c 'import numpy, matplotlib, llm_runtime' 2>/dev/null; then run make setup-dev; fi

has_vllm() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)' 2>/dev/null; }
if [ -z "$python" ]; then
  for candidate in .venv-gpu/bin/python python3 ${cpu:+.venv-vllm/bin/python}; do
    if has_vllm "$candidate"; then python=$candidate; break; fi
  done
fi
if [ -z "$python" ]; then
  echo "no environment with vLLM: making .venv-gpu (some GB; not in the time limit)"
  run python3 -m venv .venv-gpu
  run .venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check "vllm==0.32.0"
  python=.venv-gpu/bin/python
elif ! has_vllm "$python"; then
  fail "$python has no vLLM" 2
fi

extra=
if [ -n "$dummy" ]; then
  extra="--load-format dummy"
  if [ ! -d "$model" ]; then
    # The builtin model's package brings a tokenizer; its conversion needs torch, which vLLM has.
    tokenizer="\$(models convert)"
    [ -n "$dry" ] || tokenizer=$(.venv/bin/llm-runtime models convert --python "$python" | tail -n 1)
    model=build/gpu-benchmark/qwen2.5-0.5b-shape
    run .venv/bin/python benchmarks/dummy_model.py --tokenizer "$tokenizer" --output "$model" --layers "$layers"
  fi
fi
if [ -n "$cpu" ]; then
  export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
  extra+=" --enforce-eager"
fi

# --- the experiment

port=$(.venv/bin/python -c 'from llm_runtime.bench.launch import free_port; print(free_port())' 2>/dev/null || echo 8123)
server="llm-runtime serve --port {port} -o backend=vllm -o 'model_path=$model' -o 'engines.vllm.python=$python'"
server+=" -o vllm_port=$port -o native_backend_concurrency={slots} -o engines.vllm.max_model_len=2048"
[ -z "$extra" ] || server+=" -o 'engines.vllm.extra_arguments=$extra'"
pages=(--metrics-url "http://127.0.0.1:$port/metrics") # vLLM's own: KV cache, batch
dcgm=${DCGM_URL:-http://127.0.0.1:9400/metrics}
if curl --silent --fail --max-time 2 --output /dev/null "$dcgm" 2>/dev/null; then pages+=(--metrics-url "$dcgm"); fi

result=$output/gpu-native-concurrency
native() {
  local status=0
  run mkdir -p "$output"
  run rm -f "$result.json" # so that an older one is not taken for this one's
  run timeout --kill-after=30 "$limit" .venv/bin/llm-runtime bench sweep \
    --server "$server" --vary slots=1,8 --concurrencies "$clients" --requests "$requests" --repeats "$repeats" \
    --input-tokens 32 --output-tokens "$tokens" --warmup-requests "$clients" --ignore-eos \
    --sample-interval-s 0.1 "${pages[@]}" --output "$result.json" || status=$?
  [ "$status" -ne 124 ] || fail "not done after $limit s" 124
  [ -n "$dry" ] || [ -e "$result.json" ] || fail "the experiment wrote no result"
  run .venv/bin/llm-runtime bench report "$result.json" --output "$result.html" \
    --title "Native concurrency on a GPU" || status=$?
  run .venv/bin/python benchmarks/analyze_results.py "$result.json" \
    --output-dir "$output/gpu-native-concurrency" || status=$?
  exit "$status"
}
status=0
(native) || status=$?
[ -n "$all" ] || exit "$status"

# --- the others. They go on after a failure: each says what could not be run, and why.

if [ -z "$dummy" ] && [[ $model == */* ]] && [ ! -d "$model" ]; then
  # Transformers and the rounding of weights want a folder. Without one they are told as not run.
  case $model in hf:*) ;; *) model=hf:$model ;; esac
  run .venv/bin/llm-runtime models pull "$model" || model=${model#hf:}
fi
others=(--model "$model" --python "$python" --results "$output" --limit-s "$each_limit")
[ -z "$awq" ] || others+=(--awq-model "$awq")
[ -z "$dummy" ] || others+=(--dummy-weights)
[ -z "$cpu" ] || others+=(--cpu)
[ -z "$quick" ] || others+=(--quick)
run .venv/bin/python benchmarks/gpu_experiments.py "${others[@]}" || status=$?
[ -z "$dry" ] || .venv/bin/python benchmarks/gpu_experiments.py "${others[@]}" --dry-run
exit "$status"
