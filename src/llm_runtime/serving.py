"""How the application is put on a socket: what is refused before, how uvicorn is told to run it."""

from __future__ import annotations

import gc
import math
import socket
import sys
from collections.abc import Iterable
from typing import Any, Literal

import uvicorn

from llm_runtime.core.errors import ConfigError
from llm_runtime.settings import Settings, is_loopback
from llm_runtime.web.protocol import Refused, server_protocol

STREAM_SEND_BUFFER_BYTES = 128 * 1024
SHUTDOWN_GRACE_S = 5
LISTEN_BACKLOG = 2048
GC_THRESHOLDS = (20_000, 20, 50)
"""So many new containers between two looks at the young ones, where Python's default is 700. Only what is
tied into a cycle waits for it, and requests tie none: refused and failed ones with large bodies neither."""


def check_workers(num_workers: int) -> None:
    """`uvicorn --workers` neither: each process would have an engine and a queue of its own."""
    if num_workers > 1:
        raise ConfigError(
            f"Refusing to serve with {num_workers} worker processes: one process owns the queue and the "
            "engine. To scale, start more servers on ports of their own behind a load balancer."
        )


def check_exposed(host: str, settings: Settings) -> None:
    """`uvicorn --host` does not pass through our settings, so the rule is applied to what it binds."""
    server = settings.server
    if not is_loopback(host) and not settings.has_keys and not server.allow_unauthenticated:
        raise ConfigError(
            f"Refusing to serve on {host} without API keys: set LLM_RUNTIME_API_KEYS, or "
            "LLM_RUNTIME_SERVER__ALLOW_UNAUTHENTICATED=true if something else checks callers."
        )


def server_config(
    app: Any, settings: Settings, refused: Refused, loop: Literal["uvloop", "none"] = "uvloop"
) -> uvicorn.Config:
    """How uvicorn is to run the application; `none`: in a loop that runs already. refused: told of what is
    refused below the application."""
    server = settings.server
    return uvicorn.Config(
        app,
        host=server.host,
        loop=loop,
        http=server_protocol(settings.limits.body_timeout_s, refused),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on where a client says it comes from
        timeout_keep_alive=math.ceil(server.keep_alive_s),
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )


def listen(host: str, port: int) -> socket.socket:
    """Binds before anything is loaded, so that a taken port is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: a reader that stalls then costs the kernel 0.5 MB, not 3.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_SEND_BUFFER_BYTES)
    # So they do this, which not every loop sets by itself: without it a reply of two writes takes 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"server.port: cannot listen on {host}:{port} ({error.strerror}); stop what uses it or choose "
            "another with --port"
        ) from None
    listener.listen(LISTEN_BACKLOG)
    return listener


def announce(host: str, port: int, models: Iterable[str], settings: Settings) -> None:
    """Tells a person in a terminal where it is, with a request to copy."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    model = next(iter(models))
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if settings.has_keys else ""
    question = (
        f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    )
    sys.stdout.write(
        f"\nServing {model} at {url}/v1 (API page: {url}/docs)\n\n"
        f"  curl -N{key} {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{question}'\n\n"
    )
    sys.stdout.flush()


def settle_heap() -> None:
    """What start-up made lives as long as the process, so the collector need not walk over it again; and a
    request leaves hardly a cycle behind, so it may come less often. For a process of our own, once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
