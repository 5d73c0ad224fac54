"""Queue and batches: who waits, for what, how long, and what the engines' slots do meanwhile."""

from __future__ import annotations

from dashboards.expr import mean, quantile, rate, share, total
from dashboards.parts import Dashboard, Panel, Query, Row, Variable, heatmap, stat

MODEL = 'model=~"$model"'
WAIT = "llm_runtime_queue_wait_seconds"
BATCH = "llm_runtime_batch_size_requests"
SLOTS = total("llm_runtime_slots", where=MODEL)
FREE = total("llm_runtime_slots_free", where=MODEL)

NOW = Row(
    "Now",
    (
        stat(
            "Waiting", "Requests in the queue.", "short", total("llm_runtime_requests_waiting", where=MODEL)
        ),
        stat(
            "Longest wait",
            "How long the request that has waited longest has been in the queue.",
            "s",
            total("llm_runtime_oldest_wait_seconds", where=MODEL, op="max"),
            steps=((None, "green"), (10, "orange"), (60, "red")),
        ),
        stat(
            "Running",
            "Requests that engines are working on.",
            "short",
            total("llm_runtime_requests_running", where=MODEL),
        ),
        stat(
            "Slots taken",
            "Of all the sequences that the engines can work on at once. A request with several choices or "
            "prompts takes several.",
            "percentunit",
            f"1 - {FREE} / ({SLOTS} > 0)",
        ),
        stat(
            "Queue wait p95",
            "From entering the queue to dispatch.",
            "s",
            quantile(0.95, WAIT, where=MODEL),
        ),
        stat(
            "Refused",
            "Share of requests refused by a limit before they were queued.",
            "percentunit",
            share(
                rate("llm_runtime_requests_total", where=f'{MODEL}, outcome="rejected"'),
                rate("llm_runtime_requests_total", where=MODEL),
            ),
            steps=((None, "green"), (0.01, "orange"), (0.2, "red")),
        ),
    ),
)

QUEUE = Row(
    "Queue",
    (
        Panel(
            "Waiting by class",
            "Requests in the queue by priority class.",
            "short",
            (
                Query(
                    total("llm_runtime_requests_waiting_by_class", ("priority_class",), MODEL),
                    "{{priority_class}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Waiting by tenant",
            "Requests in the queue by whose they are, all classes together.",
            "short",
            (Query(total("llm_runtime_tenant_requests_waiting", ("tenant",), MODEL), "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            "Service by tenant",
            "Tokens per second as the policy fair weighs them, prompt 1 and generated 2. Under fair, tenants "
            "that all wait get shares as their weights are.",
            "short",
            (Query(rate("llm_runtime_tenant_service_tokens_total", ("tenant",)), "{{tenant}}"),),
        ),
        Panel(
            "Why the first in the queue waits",
            "1 for what keeps it. no_free_slot is plain load; with class_cap, slots_kept and "
            "needs_more_slots, slots are free; no_engine_ready is trouble.",
            "short",
            (Query(total("llm_runtime_queue_head_waits", ("reason",), MODEL, op="max"), "{{reason}}"),),
        ),
        Panel(
            "Longest wait",
            "The request that has waited longest, by model.",
            "s",
            (Query(total("llm_runtime_oldest_wait_seconds", ("model",), MODEL, op="max"), "{{model}}"),),
        ),
        Panel(
            "Work that waits",
            "Estimated prompt tokens and token caps of the requests in the queue: how much, not how many.",
            "short",
            (Query(total("llm_runtime_tokens_waiting", ("model",), MODEL), "{{model}}"),),
        ),
        Panel(
            "Queue wait p95 by class",
            "From entering the queue to dispatch. Under priority scheduling the classes must part here.",
            "s",
            (Query(quantile(0.95, WAIT, ("priority_class",), MODEL), "{{priority_class}}"),),
        ),
        Panel(
            "Predicted wait by class",
            "How long a request would wait that came now: what refusals tell. Nothing while it is unknown.",
            "s",
            (
                Query(
                    total("llm_runtime_predicted_wait_seconds", ("priority_class",), MODEL, op="max"),
                    "{{priority_class}}",
                ),
            ),
        ),
        heatmap(
            "Queue wait distribution",
            "Dispatches per second by how long the request had waited.",
            "s",
            rate(f"{WAIT}_bucket", ("le",), MODEL),
        ),
        Panel(
            "Refused before they were queued",
            "By the limit that refused. queue_full, would_miss_deadline: more demand than capacity; "
            "rate_limit_exceeded: the configured rate.",
            "reqps",
            (Query(rate("llm_runtime_rejections_total", ("reason",)), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Refused clients that were told when to return",
            "kept: let in when they came. broken: there was no room after all, the engine has become slower. "
            "lapsed: they did not come.",
            "reqps",
            (Query(rate("llm_runtime_promises_total", ("outcome",), MODEL), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Refused by priority",
            "0 is the most urgent. Limits refuse without regard to priority unless told otherwise.",
            "reqps",
            (Query(rate("llm_runtime_rejections_total", ("priority",)), "{{priority}}"),),
            stacked=True,
        ),
        Panel(
            "Accepted and evicted",
            "Requests let in, and those that left the queue without an engine having seen them.",
            "reqps",
            (
                Query(rate("llm_runtime_requests_accepted_total", where=MODEL), "accepted"),
                Query(
                    rate("llm_runtime_requests_total", ("reason",), f'{MODEL}, outcome="evicted"'),
                    "evicted: {{reason}}",
                ),
            ),
        ),
    ),
)

SLOTS_AND_BATCHES = Row(
    "Slots and batches",
    (
        Panel(
            "Slots",
            "Free slots beside waiting requests: a request that needs several slots is at the head, or an "
            "engine is starting.",
            "short",
            (
                Query(SLOTS, "all"),
                Query(FREE, "free"),
                Query(total("llm_runtime_requests_waiting", where=MODEL), "requests waiting"),
            ),
        ),
        Panel(
            "Running by replica",
            "Requests that each engine is working on.",
            "short",
            (Query(total("llm_runtime_requests_running", ("replica",), MODEL), "{{replica}}"),),
            stacked=True,
        ),
        Panel(
            "Ended by replica",
            "Requests per second that a replica had taken, by outcome: one that fails more than its "
            "neighbours is ill.",
            "reqps",
            (
                Query(
                    rate("llm_runtime_replica_requests_total", ("replica", "outcome")),
                    "{{replica}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Batch size",
            "Requests handed to an engine as one batch; only engines that do not batch by themselves.",
            "short",
            (
                Query(mean(BATCH, ("replica",)), "{{replica}} mean"),
                Query(quantile(0.95, BATCH, ("replica",)), "{{replica}} p95"),
            ),
        ),
        heatmap(
            "Batch size distribution",
            "Batches per second by how many requests they had.",
            "short",
            rate(f"{BATCH}_bucket", ("le",)),
        ),
        Panel(
            "Batches",
            "Handed to engines, per second.",
            "ops",
            (Query(rate(f"{BATCH}_count", ("replica",)), "{{replica}}"),),
        ),
    ),
)

PAGE = Dashboard(
    uid="llm-runtime-queue",
    title="LLM Runtime / Queue and batches",
    description="Who waits, for what, how long, and what the engines' slots do meanwhile.",
    variables=(
        Variable("job", "llm_runtime_ready"),
        Variable("instance", 'llm_runtime_ready{job=~"$job"}'),
        Variable("model", 'llm_runtime_requests_waiting{job=~"$job", instance=~"$instance"}'),
    ),
    rows=(NOW, QUEUE, SLOTS_AND_BATCHES),
)
