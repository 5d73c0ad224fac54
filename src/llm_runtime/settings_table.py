"""Every setting once: its dotted name, its flat name, what it means, whether it is a secret.

The types and the defaults are not here: each package's `config.py` holds them. This table adds what
a type cannot say, and is what the reference page, the error messages and the aliases are made from.
Models and engines have a file of their own, `settings_engine_rows`. It reads nothing and validates nothing.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.engines.config import EnginesConfig, ModelConfig
from llm_runtime.engines.ray.config import RayConfig
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.settings_engine_rows import ENGINE_ROWS
from llm_runtime.settings_row import Row
from llm_runtime.telemetry.config import TelemetryConfig
from llm_runtime.web.config import ServerConfig

ENV_PREFIX = "LLM_RUNTIME_"
CONFIG_VARIABLE = "LLM_RUNTIME_CONFIG"
CACHE_VARIABLE = "LLM_RUNTIME_CACHE"

SECTIONS: Mapping[str, type] = types.MappingProxyType(
    {
        "server": ServerConfig,
        "model": ModelConfig,
        "engines": EnginesConfig,
        "scheduling": SchedulingConfig,
        "routing": RoutingConfig,
        "admission": AdmissionConfig,
        "limits": LimitsConfig,
        "telemetry": TelemetryConfig,
        "ray": RayConfig,
    }
)

TABLE: Mapping[str, Row] = types.MappingProxyType(
    {
        "server.host": Row("Address to listen on.", "HOST"),
        "server.port": Row("TCP port to listen on; 0 lets the system choose.", "PORT"),
        "server.api_keys": Row(
            "Accepted bearer keys, separated by commas in a variable; none: no authentication.",
            "API_KEYS",
            secret=True,
        ),
        "server.admin_api_keys": Row(
            "Bearer keys of operators, for `/admin/...`, given as the others; none: there is no such path.",
            "ADMIN_API_KEYS",
            secret=True,
        ),
        "server.allow_unauthenticated": Row(
            "Permits an address other than loopback without any key; refused otherwise."
        ),
        "server.cors_allow_origins": Row("Origins that browsers may call from; none: CORS is off."),
        "server.max_body_bytes": Row("Largest request body, also when it comes in chunks; above it: 413."),
        "server.max_messages": Row("Most messages in one request."),
        "server.max_tools": Row("Most tools in one request."),
        "server.keep_alive_s": Row(
            "How long an idle client connection stays open; more than the 60 s of common balancers."
        ),
        **ENGINE_ROWS,
        "scheduling.policy": Row("In what order waiting requests run.", "SCHEDULER"),
        "scheduling.priority_aging_boost_interval_s": Row(
            "Waiting this long raises a request by one priority level; unset: better levels (`priority`) or "
            "classes (`fair`, `deadline`, `shortest`) strictly first. Not with `fifo`.",
            "PRIORITY_AGING_BOOST_INTERVAL_S",
        ),
        "scheduling.fair_credit_tokens": Row(
            "With `fair`: how much of the service it did not want a tenant keeps for later, in tokens "
            "(prompt 1, generated 2); a few seconds of what the engines serve."
        ),
        "scheduling.fair_reserve_slots": Row(
            "With `fair`: slots kept free for tenants that have had less than their share, while there are "
            "such; 0 keeps every slot busy."
        ),
        "scheduling.fair_prompts": Row(
            "With `fair`: requests at their prompt at once on each engine, above which only tenants that "
            "have had less than their share start another, while there are such; unset: any number."
        ),
        "scheduling.shortest_patience": Row(
            "With `shortest`: for how many times its own predicted service a request may be overtaken by "
            "shorter ones that come later."
        ),
        "scheduling.shortest_reserve_slots": Row(
            "With `shortest`: slots that requests predicted longer than the mean may not take; 0 keeps every "
            "slot busy."
        ),
        "scheduling.batch_slot_share": Row(
            "Share of the slots that requests of priority 7 to 9 may hold; unset: all. Not with `fifo`."
        ),
        "scheduling.batch_prompts": Row(
            "Requests of priority 7 to 9 that may be at their prompt at once, on each engine; unset: any "
            "number. Not with `fifo`."
        ),
        "scheduling.batch_prompt_time_share": Row(
            "Share of the time in which prompts of priority 7 to 9 are computed while better classes are "
            "active; unset: all of it. Not with `fifo`."
        ),
        "scheduling.preempt": Row(
            "Who gives up its slots when a better class waits and none is free: nobody; requests without a "
            "token yet, which go back to the queue (`prompts`); running requests of priority 7 to 9 too, "
            "whose streams end with an error (`batch`). Not with `fifo`."
        ),
        "scheduling.enable_batching": Row(
            "Micro-batching for engines that do not batch themselves; off: one request at a time.",
            "ENABLE_BATCHING",
        ),
        "scheduling.max_batch_size": Row("Most requests in a micro-batch.", "MAX_BATCH_SIZE"),
        "scheduling.batch_timeout_ms": Row(
            "How long a micro-batch waits to fill, in milliseconds.", "BATCH_TIMEOUT_MS"
        ),
        "scheduling.max_skip_s": Row(
            "How long a request that fits on no free replica lets later ones pass it."
        ),
        "routing.max_attempts": Row(
            "Engines that may be given one request, all told, as long as nothing of an answer was sent; "
            "1: none is tried again. A client can lower it: `x-max-attempts`."
        ),
        "routing.retry_unanswered": Row(
            "Tries again, on another replica, also where an engine may have begun to compute: its connection "
            "was lost, it answered 5xx or not as an engine does."
        ),
        "routing.retry_share": Row(
            "Further attempts per request, over all requests of a pool (20 may be saved up, one comes in "
            "each second); beyond it failures are passed on."
        ),
        "routing.breaker_failures": Row(
            "Failures in a row after which an upstream is given no requests for a while."
        ),
        "routing.breaker_open_s": Row("For how long at first; doubles while it goes on failing."),
        "routing.breaker_open_max_s": Row("For how long at most."),
        "routing.breaker_silence_s": Row(
            "A request that runs into a limit of time counts as the upstream's failure if nothing at all "
            "came from it for so long."
        ),
        "scheduling.adaptive_limit": Row(
            "Uses as many slots of each engine that batches by itself as are worth it, found while requests "
            "wait; off: all of them."
        ),
        "admission.max_queue_size": Row(
            "Requests that may wait, per pool; more are refused with 503; unset: no limit.", "MAX_QUEUE_SIZE"
        ),
        "admission.max_predicted_wait_s": Row(
            "Who would wait longer is refused with 503 and told when to return; beside the limits of each "
            "request, which are always looked at; unset: no such limit."
        ),
        "admission.retry_share": Row(
            "While there is a queue, retries that come sooner than told are let in up to this share of first "
            "tries; unset: all of them."
        ),
        "admission.request_rate_limit_per_s": Row(
            "Requests admitted per second over all clients; more are refused with 429; unset: no limit.",
            "REQUEST_RATE_LIMIT_PER_S",
        ),
        "admission.request_rate_limit_burst": Row(
            "Requests admitted at once after a pause; unset: one second's worth, at least 1.",
            "REQUEST_RATE_LIMIT_BURST",
        ),
        "admission.tenants": Row(
            "Tenants with a name, limits or rights of their own, as [tenants.md](tenants.md) tells.",
            secret=True,
        ),
        "admission.redis.url": Row(
            "Redis that several servers keep tenants' limits in, `redis://host:6379/0`, `rediss://...` or "
            "`unix:///path`; unset: each server for itself.",
            "REDIS_URL",
            is_url=True,
        ),
        "admission.redis.timeout_ms": Row("How long a request waits for Redis before it counts as gone."),
        "admission.redis.when_gone": Row(
            "While Redis is gone: `open`: each server goes on with limits of its own; `closed`: limited "
            "tenants get 503."
        ),
        "admission.redis.lease_s": Row(
            "How long a place of `max_concurrent_requests` outlives a server that was killed."
        ),
        "admission.redis.key_prefix": Row(
            "What Redis keys begin with; servers that share limits have the same."
        ),
        "limits.request_timeout_s": Row(
            "A plain reply in total; a stream's time to its first token.", "REQUEST_TIMEOUT_S"
        ),
        "limits.queue_timeout_s": Row("Longest wait in our queue.", "QUEUE_TIMEOUT_S"),
        "limits.stream_idle_timeout_s": Row("Longest gap within a stream.", "STREAM_IDLE_TIMEOUT_S"),
        "limits.stream_max_s": Row("A stream in total.", "STREAM_MAX_S"),
        "limits.write_stall_timeout_s": Row(
            "How long a client may not read its stream before it is cut off.", "WRITE_STALL_TIMEOUT_S"
        ),
        "limits.keep_alive_interval_s": Row("Silence after which a stream is sent a comment."),
        "limits.body_timeout_s": Row("How long a client may take to send its request body."),
        "limits.drain_timeout_s": Row(
            "Time for running requests to finish after the first signal to stop.", "DRAIN_TIMEOUT_S"
        ),
        "telemetry.log_level": Row("Least important lines that are logged.", "LOG_LEVEL"),
        "telemetry.log_format": Row("`auto`: for people on a terminal, JSON lines elsewhere.", "LOG_FORMAT"),
        "telemetry.gpu_poll_interval_s": Row("Seconds between readings of the GPUs; 0: none are read."),
        "ray.device": Row(
            "Ray: what engines compute on; `auto`: GPUs where this machine, or the cluster it has joined, "
            "has any."
        ),
        "ray.min_replicas": Row("Ray: fewest engines. Our queue is not Ray's, so it cannot start from none."),
        "ray.max_replicas": Row("Ray: most engines; unset: 8 on GPUs, else 1."),
        "ray.target_ongoing_requests": Row(
            "Ray: running requests per engine above which Ray adds one; unset: three quarters of its slots."
        ),
        "ray.upscale_delay_s": Row("Ray: how long the load must last before an engine is added."),
        "ray.downscale_delay_s": Row("Ray: how long it must be gone before one is taken away."),
        "ray.num_cpus": Row("Ray: processors set aside for each engine."),
        "ray.num_gpus": Row("Ray: GPUs set aside for each engine; unset: 1 on GPUs, else 0."),
        "ray.num_ingress_cpus": Row("Ray: processors set aside for the ingress, which has the queue."),
        "ray.drain_timeout_s": Row(
            "Ray: how long engines and ingresses that are to go may finish their streams."
        ),
        "ray.health_check_period_s": Row("Ray: seconds between its questions whether a replica is well."),
    }
)
