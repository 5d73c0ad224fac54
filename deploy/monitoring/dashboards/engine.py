"""Engine and KV cache: the state of every engine as the server sees it, then what vLLM and llama.cpp say.

vLLM and llama.cpp can be scraped where they listen on an address of their own, that is, as an upstream
by URL. An engine that the server runs itself listens on a private socket.
"""

from __future__ import annotations

from dashboards.expr import increase, mean, quantile, rate, series, share, total
from dashboards.parts import Dashboard, Panel, Query, Row, Variable, heatmap

REPLICA = "{{instance}} {{replica}}"
VLLM = "{{instance}} {{model_name}}"
BY_VLLM = ("instance", "model_name")
BY_INSTANCE = ("instance",)

STATES = Row(
    "Engines, as the server sees them",
    (
        Panel(
            "State",
            "One line for each state that an engine was in. crashed: it is being started again after a "
            "pause; failed: given up.",
            "none",
            (Query(series("llm_runtime_engine_state") + " == 1", f"{REPLICA} {{{{state}}}}"),),
            kind="state-timeline",
            width=12,
        ),
        Panel(
            "Changes of state",
            "Each start after the first one is a restart.",
            "short",
            (
                Query(
                    increase("llm_runtime_engine_state_changes_total", ("replica", "state")),
                    "{{replica}} {{state}}",
                ),
            ),
            width=12,
            stacked=True,
        ),
        Panel(
            "Up",
            "1 while the engine answers and takes work.",
            "bool_yes_no",
            (Query(series("llm_runtime_engine_up"), REPLICA),),
        ),
        Panel(
            "Suspect replicas",
            "1 while slots of a cancelled request are not confirmed free: they count as taken.",
            "bool_yes_no",
            (Query(series("llm_runtime_replica_suspect"), REPLICA),),
        ),
        Panel(
            "Leases that became suspect",
            "Cancelled requests whose slots the engine did not confirm as free in time.",
            "short",
            (Query(increase("llm_runtime_suspect_leases_total", ("replica",)), "{{replica}}"),),
        ),
    ),
)

VLLM_ROW = Row(
    "vLLM",
    (
        Panel(
            "KV cache in use",
            "Share of the blocks. Near 1 vLLM preempts requests, and what they had computed is lost.",
            "percentunit",
            (Query(total("vllm:kv_cache_usage_perc", BY_VLLM, op="max"), VLLM),),
            maximum=1,
        ),
        Panel(
            "Preemptions",
            "Requests that vLLM took out of the batch for want of cache, per second.",
            "ops",
            (Query(rate("vllm:num_preemptions_total", BY_VLLM), VLLM),),
        ),
        Panel(
            "Prefix cache hits",
            "Share of prompt tokens that were found in the prefix cache.",
            "percentunit",
            (
                Query(
                    share(
                        rate("vllm:prefix_cache_hits_total", BY_VLLM),
                        rate("vllm:prefix_cache_queries_total", BY_VLLM),
                    ),
                    VLLM,
                ),
            ),
            maximum=1,
        ),
        Panel(
            "Requests in vLLM",
            "What waits in vLLM can be neither ordered nor cancelled: with as many slots in the server as "
            "vLLM has sequences, nothing does.",
            "short",
            (
                Query(total("vllm:num_requests_running", BY_VLLM), f"{VLLM} running"),
                Query(
                    total("vllm:num_requests_waiting_by_reason", (*BY_VLLM, "reason")),
                    f"{VLLM} waiting: {{{{reason}}}}",
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Per second, as vLLM computes them. Cached prompt tokens cost nothing.",
            "cps",
            (
                Query(rate("vllm:prompt_tokens_total", BY_VLLM), f"{VLLM} prompt"),
                Query(rate("vllm:prompt_tokens_cached_total", BY_VLLM), f"{VLLM} prompt, cached"),
                Query(rate("vllm:generation_tokens_total", BY_VLLM), f"{VLLM} generated"),
            ),
        ),
        Panel(
            "Tokens per step",
            "Mean over engine steps, prefill and decode together: how full the batches are.",
            "short",
            (Query(mean("vllm:iteration_tokens_total", BY_VLLM), VLLM),),
        ),
        Panel(
            "Where time goes",
            "p95 of the parts of a request inside vLLM.",
            "s",
            (
                Query(quantile(0.95, "vllm:request_queue_time_seconds"), "queue"),
                Query(quantile(0.95, "vllm:request_prefill_time_seconds"), "prefill"),
                Query(quantile(0.95, "vllm:request_decode_time_seconds"), "decode"),
            ),
        ),
        Panel(
            "Latency inside vLLM",
            "p95. Compare with the traffic page: the difference is queue, network and server.",
            "s",
            (
                Query(quantile(0.95, "vllm:time_to_first_token_seconds"), "first token"),
                Query(quantile(0.95, "vllm:inter_token_latency_seconds"), "between tokens"),
                Query(quantile(0.95, "vllm:e2e_request_latency_seconds"), "whole request"),
            ),
        ),
        Panel(
            "Requests ended in vLLM",
            "By finish reason. abort: the server or its client broke off.",
            "reqps",
            (Query(rate("vllm:request_success_total", ("finished_reason",)), "{{finished_reason}}"),),
            stacked=True,
        ),
        heatmap(
            "Gaps between tokens",
            "Inside vLLM, tokens per second by the gap before them.",
            "s",
            rate("vllm:inter_token_latency_seconds_bucket", ("le",)),
        ),
        Panel(
            "KV cache size",
            "Blocks of the cache, as vLLM laid it out at its start.",
            "short",
            (
                Query(
                    total("vllm:cache_config_info", ("instance", "num_gpu_blocks", "block_size")),
                    "{{instance}} {{num_gpu_blocks}} blocks of {{block_size}} tokens",
                ),
            ),
        ),
    ),
)

LLAMA_CPP = Row(
    "llama.cpp",
    (
        Panel(
            "Requests in llama.cpp",
            "Deferred ones wait inside the engine, where they can be neither ordered nor cancelled.",
            "short",
            (
                Query(total("llamacpp:requests_processing", BY_INSTANCE), "{{instance}} processing"),
                Query(total("llamacpp:requests_deferred", BY_INSTANCE), "{{instance}} deferred"),
            ),
        ),
        Panel(
            "Tokens",
            "Per second. Cached prompt tokens cost nothing.",
            "cps",
            (
                Query(rate("llamacpp:prompt_tokens_total", BY_INSTANCE), "{{instance}} prompt"),
                Query(
                    rate("llamacpp:prompt_tokens_cached_total", BY_INSTANCE), "{{instance}} prompt, cached"
                ),
                Query(rate("llamacpp:tokens_predicted_total", BY_INSTANCE), "{{instance}} generated"),
            ),
        ),
        Panel(
            "Busy slots per step",
            "Mean since the engine's start: how full its batches are.",
            "short",
            (Query(total("llamacpp:n_busy_slots_per_decode", BY_INSTANCE), "{{instance}}"),),
        ),
        Panel(
            "Steps",
            "Calls of the model per second.",
            "ops",
            (Query(rate("llamacpp:n_decode_total", BY_INSTANCE), "{{instance}}"),),
        ),
        Panel(
            "Time spent",
            "Share of time in prefill and in decode.",
            "percentunit",
            (
                Query(rate("llamacpp:prompt_seconds_total", BY_INSTANCE), "{{instance}} prefill"),
                Query(rate("llamacpp:tokens_predicted_seconds_total", BY_INSTANCE), "{{instance}} decode"),
            ),
        ),
        Panel(
            "Longest sequence",
            "Prompt and answer together, in tokens, since the start. A slot's context is its limit.",
            "short",
            (Query(total("llamacpp:n_tokens_max", BY_INSTANCE, op="max"), "{{instance}}"),),
        ),
    ),
)

ANY = "llm_runtime_ready|vllm:num_requests_running|llamacpp:requests_processing"

PAGE = Dashboard(
    uid="llm-runtime-engine",
    title="LLM Runtime / Engine and KV cache",
    description="The state of every engine, and what the engines say of themselves.",
    variables=(
        Variable("job", f'{{__name__=~"{ANY}"}}'),
        Variable("instance", f'{{__name__=~"{ANY}", job=~"$job"}}'),
    ),
    rows=(STATES, VLLM_ROW, LLAMA_CPP),
)
