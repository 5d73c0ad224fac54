"""The engine program: llama.cpp's own server inside a Python process of ours.

    python -m llm_runtime.engines.llama_cpp.host --socket PATH --model FILE --alias NAME ...

It prints `LISTENING <address>` once it answers. There is no SIGTERM handler: the default action
ends it within milliseconds, also in the middle of a stream. The API key it demands comes from the
environment (LLAMA_API_KEY). Exit code 78: starting it again with the same arguments cannot help.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any, NoReturn

from llm_runtime.engines.guard import EXIT_CONFIG
from llm_runtime.engines.llama_cpp.command import API_KEY_VARIABLE, LISTENING

WARNINGS = 2  # llama.cpp's verbosity without prompts, with the causes of a failed load
MAX_SOCKET_PATH = 100


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama_cpp.host", description=__doc__, allow_abbrev=False)
    address = parser.add_mutually_exclusive_group(required=True)
    address.add_argument("--socket", help="Unix socket to listen on; must not exist yet")
    address.add_argument("--port", type=int, help="TCP port to listen on; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model name in replies")
    parser.add_argument("--slots", type=_positive, default=1, metavar="N")
    parser.add_argument("--ctx-per-slot", type=_positive, default=2048, metavar="TOKENS")
    parser.add_argument("--threads", type=_positive, default=1, metavar="N")
    parser.add_argument("--batch", type=_positive, default=16, metavar="TOKENS")
    parser.add_argument("--gpu-layers", type=int, default=0, metavar="N")
    parser.add_argument("--cache-ram-mib", type=int, default=256, metavar="MIB")
    parser.add_argument("--poll", type=int, choices=range(101), default=0, metavar="0..100")
    parser.add_argument("--lora", action="append", default=[], metavar="FILE", help="adapter; may repeat")
    parser.add_argument("--embeddings", action="store_true", help="serve embeddings of the last token too")
    return parser.parse_args(argv)


def problem(options: argparse.Namespace) -> str | None:
    """What makes these arguments hopeless; better said here than by an abort of the engine."""
    if options.batch < options.slots:
        return f"--batch {options.batch} is smaller than --slots {options.slots}; the engine would abort"
    if not os.access(options.model, os.R_OK):
        return f"--model {options.model} cannot be read"
    with open(options.model, "rb") as file:
        if file.read(4) != b"GGUF":
            return f"--model {options.model} is not a GGUF file"
    if options.socket is not None and len(os.fsencode(options.socket)) > MAX_SOCKET_PATH:
        return f"--socket is longer than {MAX_SOCKET_PATH} bytes"
    return None


def engine_parameters(options: argparse.Namespace, api_key: str | None) -> Any:
    """xllamacpp's CommonParams."""
    from xllamacpp import CommonParams  # type: ignore[import-untyped]

    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.socket if options.socket is not None else options.host]
    params.port = options.port or 0
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.ctx_per_slot  # the engine divides it among its slots
    params.n_batch = params.n_ubatch = options.batch
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = options.threads
        threads.poll = options.poll
    params.n_gpu_layers = options.gpu_layers
    params.cache_ram_mib = options.cache_ram_mib
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.ui = False
    params.sse_ping_interval = -1  # the gateway keeps its clients' connections alive itself
    params.verbosity = WARNINGS
    if options.lora:
        from xllamacpp import CommonAdapterLoraInfo

        params.lora_adapters = [CommonAdapterLoraInfo(path, 1.0) for path in options.lora]
        params.lora_init_without_apply = True  # requests say which they want
    if options.embeddings:
        from xllamacpp import llama_pooling_type

        # Pooling over all tokens would need a whole prompt in one batch, which nothing can cancel.
        params.embedding = True
        params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    if api_key:
        params.api_keys = [api_key]
    return params


def main() -> NoReturn:
    options = arguments()
    if (cause := problem(options)) is not None:
        print(cause, file=sys.stderr)  # noqa: T201 - this program's way to say it
        sys.exit(EXIT_CONFIG)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would run a debugger first, for a second or more
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from xllamacpp import Server

    try:
        server: Any = Server(engine_parameters(options, os.environ.get(API_KEY_VARIABLE)))
    except RuntimeError as exc:  # its cause is on stderr already
        print(exc, file=sys.stderr)  # noqa: T201
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # in case the library took it
    print(f"{LISTENING}{server.listening_address}", flush=True)  # noqa: T201
    while True:
        signal.pause()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


if __name__ == "__main__":
    main()
