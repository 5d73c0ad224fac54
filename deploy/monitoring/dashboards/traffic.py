"""Traffic and latency: what clients ask, what they get, how long it takes. For whoever is paged first."""

from __future__ import annotations

from dashboards.expr import quantile, rate, series, share, total
from dashboards.parts import Dashboard, Panel, Query, Row, Variable, heatmap, stat

MODEL = 'model=~"$model"'
REQUESTS = "llm_runtime_requests_total"
ERRORS = f'{MODEL}, outcome=~"failed|timed_out|evicted"'
JUDGED = f'{MODEL}, outcome!~"cancelled|rejected"'
"""What the service is measured by: neither what clients broke off nor what a limit refused."""

TTFT = "llm_runtime_time_to_first_token_seconds"


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, histogram, where=MODEL), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


NOW = Row(
    "Now",
    (
        stat(
            "Ready",
            "Whether requests sent now can be served, by the worst of the chosen servers. The reason is in "
            "/health/ready.",
            "bool_yes_no",
            total("llm_runtime_ready", op="min"),
            steps=((None, "red"), (1, "green")),
        ),
        stat(
            "Requests ended",
            "Per second, with every outcome, rejected ones included.",
            "reqps",
            rate(REQUESTS, where=MODEL),
        ),
        stat(
            "Error share",
            "Failed, timed out and evicted requests among those that neither a limit refused nor the client "
            "broke off.",
            "percentunit",
            share(rate(REQUESTS, where=ERRORS), rate(REQUESTS, where=JUDGED)),
            steps=((None, "green"), (0.005, "orange"), (0.02, "red")),
        ),
        stat(
            "TTFT p95",
            "From arrival to the first token, queue wait included, of streams and plain replies.",
            "s",
            quantile(0.95, TTFT, where=MODEL),
        ),
        stat(
            "Tokens generated",
            "Per second, as the engines counted them; also for requests that did not complete. A request's "
            "tokens are counted when it ends.",
            "cps",
            rate("llm_runtime_completion_tokens_total", where=MODEL),
        ),
        stat(
            "In flight",
            "Requests accepted and not ended, waiting or running, of all models.",
            "short",
            total("llm_runtime_requests_active"),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Requests by outcome",
            "Ended requests per second. Cancelled: the client left, or the server stopped.",
            "reqps",
            (Query(rate(REQUESTS, ("outcome",), MODEL), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Why requests did not complete",
            "The error's code as the client saw it, beside the outcome.",
            "reqps",
            (
                Query(
                    rate(REQUESTS, ("outcome", "reason"), f'{MODEL}, outcome!="completed"'),
                    "{{outcome}}: {{reason}}",
                ),
            ),
        ),
        Panel(
            "Bad calls",
            "Calls answered with an error before they became a request: malformed bodies, unknown paths, "
            "missing keys.",
            "reqps",
            (
                Query(
                    rate("llm_runtime_refusals_total", ("status", "reason")),
                    "{{status}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Per second. Cached: prompt tokens that the engine took from its prefix cache; they are among "
            "the prompt tokens.",
            "cps",
            (
                Query(rate("llm_runtime_prompt_tokens_total", where=MODEL), "prompt"),
                Query(rate("llm_runtime_cached_prompt_tokens_total", where=MODEL), "prompt, cached"),
                Query(rate("llm_runtime_completion_tokens_total", where=MODEL), "completion"),
            ),
        ),
        Panel(
            "Requests by tenant",
            "Ended requests per second by API key; only with keys configured.",
            "reqps",
            (Query(rate("llm_runtime_tenant_requests_total", ("tenant",)), "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            "Tokens by tenant",
            "Prompt and completion tokens per second by API key; only with keys configured.",
            "cps",
            (Query(rate("llm_runtime_tenant_tokens_total", ("tenant", "type")), "{{tenant}} {{type}}"),),
            stacked=True,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From arrival, queue wait included; every request of which a token was seen.",
            "s",
            _quantiles(TTFT),
        ),
        Panel(
            "TTFT p95 by class",
            "Priority 0 to 3 is interactive, 4 to 6 standard, 7 to 9 batch.",
            "s",
            (Query(quantile(0.95, TTFT, ("priority_class",), MODEL), "{{priority_class}}"),),
        ),
        heatmap(
            "TTFT distribution",
            "First tokens per second by how long they took: two modes are two kinds of requests.",
            "s",
            rate(f"{TTFT}_bucket", ("le",), MODEL),
        ),
        Panel(
            "Inter-token latency",
            "Gaps between reads from the engine that brought tokens: what a reader feels as stutter.",
            "s",
            _quantiles("llm_runtime_inter_token_latency_seconds"),
        ),
        Panel(
            "Time per output token",
            "Decode time by tokens after the first, one value for each request.",
            "s",
            _quantiles("llm_runtime_time_per_output_token_seconds"),
        ),
        Panel(
            "Request duration",
            "From arrival to the last byte, of completed requests only: failures must not look fast.",
            "s",
            _quantiles("llm_runtime_request_duration_seconds"),
        ),
        Panel(
            "Prompt length",
            "Tokens in the prompts of completed requests, as the engine counted them.",
            "short",
            _quantiles("llm_runtime_request_prompt_tokens"),
        ),
        Panel(
            "Answer length",
            "Tokens in the answers of completed requests, as the engine counted them.",
            "short",
            _quantiles("llm_runtime_request_completion_tokens"),
        ),
    ),
)

PROCESS = Row(
    "Server process",
    (
        Panel(
            "Event loop lag",
            "How late the loop was. Every stream feels it: above some milliseconds something blocks.",
            "s",
            (
                Query(series("llm_runtime_event_loop_lag_seconds"), "{{instance}} last"),
                Query(series("llm_runtime_event_loop_lag_max_seconds"), "{{instance}} largest of a minute"),
            ),
        ),
        Panel(
            "Processor time",
            "Of the server itself, engines not included. One process can use one core.",
            "percentunit",
            (Query(rate("process_cpu_seconds_total", ("instance",)), "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Resident memory of the server itself, engines not included.",
            "bytes",
            (Query(series("process_resident_memory_bytes"), "{{instance}}"),),
        ),
        Panel(
            "Open files",
            "Sockets of clients and engines for the most part, beside what the system permits.",
            "short",
            (
                Query(series("process_open_fds"), "{{instance}} open"),
                Query(series("process_max_fds"), "{{instance}} permitted"),
            ),
        ),
        Panel(
            "Version",
            "Which version each server runs.",
            "none",
            (Query(total("llm_runtime_build_info", ("instance", "version")), "{{instance}} {{version}}"),),
        ),
    ),
)

PAGE = Dashboard(
    uid="llm-runtime-traffic",
    title="LLM Runtime / Traffic and latency",
    description="What clients ask, what they get and how long it takes.",
    variables=(
        Variable("job", "llm_runtime_ready"),
        Variable("instance", 'llm_runtime_ready{job=~"$job"}'),
        Variable("model", 'llm_runtime_requests_waiting{job=~"$job", instance=~"$instance"}'),
    ),
    rows=(NOW, TRAFFIC, LATENCY, PROCESS),
)
