"""The engine program: Transformers behind OpenAI's API, one request at a time.

    python -m llm_runtime.engines.hf.host --socket PATH | --port N --model FOLDER [--name NAME] ...

It runs in any Python that has torch, transformers and the few packages of `REQUIRED`; nothing of them
is imported before they are known to be there. It prints `LISTENING <address>` once it answers, and
`CANNOT <why>` before it ends with code 78: starting it again with the same arguments cannot help.
SIGTERM's default action ends it at once, also in the middle of an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from llm_runtime.engines.guard import EXIT_CONFIG

LISTENING = "LISTENING "
CANNOT = "CANNOT "

REQUIRED = ("torch", "transformers", "uvicorn", "pydantic", "orjson")
MIN_PYTHON = (3, 11)
MIN_TRANSFORMERS = (4, 56)
DTYPES = ("auto", "bfloat16", "float16", "float32")
BACKLOG = 2048


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    summary = "Serves a model folder with Hugging Face Transformers, one request at a time."
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    address = parser.add_mutually_exclusive_group()
    address.add_argument("--socket", help="Unix socket to listen on; must not exist yet")
    address.add_argument("--port", type=int, default=8001, help="TCP port (default 8001); 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port (default 127.0.0.1)")
    parser.add_argument("--model", required=True, help="folder with config.json, tokenizer and safetensors")
    parser.add_argument("--name", help="model name in requests and replies (default: the folder's)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--threads", type=int, help="computing threads (default: torch's choice)")
    parser.add_argument("--max-tokens", type=int, default=512, help="cap where a request names none")
    return parser.parse_args(argv)


def missing(required: tuple[str, ...] = REQUIRED) -> str | None:
    """What this Python lacks, as a sentence for its user; None where it has all."""
    if sys.version_info < MIN_PYTHON:
        return "engines.hf.python is older than Python 3.11; name a newer one"
    absent = [name for name in required if importlib.util.find_spec(name) is None]
    if absent:
        return (
            f"the Python of engines.hf.python lacks {', '.join(absent)}; install them into its environment "
            f"(pip install {' '.join(absent)}), or set engines.hf.python to one that has them"
        )
    version = importlib.metadata.version("transformers")
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is not None and (int(number[1]), int(number[2])) < MIN_TRANSFORMERS:
        return (
            f"transformers {version} in the Python of engines.hf.python is too old; 4.56 or newer is needed"
        )
    return None


def tell() -> None:
    """Prints what would be used, or CANNOT: for `backend.installed`."""
    if (cause := missing()) is not None:
        give_up(cause)
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "torch")]
    print(", ".join(found))  # noqa: T201


def main(argv: list[str] | None = None) -> NoReturn:
    options = arguments(argv)
    if (cause := missing()) is not None:
        give_up(cause)
    if not (Path(options.model) / "config.json").is_file():
        give_up("model.path (--model) names no folder with a config.json, which Transformers needs")
    listener = _listen(options)
    # Nothing is ever fetched: a folder that lacks something is said to.
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _serve(options, listener)
    sys.exit(0)


def give_up(cause: str) -> NoReturn:
    print(CANNOT + cause, flush=True)  # noqa: T201 - this program's way to say it
    sys.exit(EXIT_CONFIG)


def _listen(options: argparse.Namespace) -> socket.socket:
    """Binds before anything is loaded, so that a taken address is said at once."""
    family, address = socket.AF_INET, (options.host, options.port)
    if options.socket is not None:
        family, address = socket.AF_UNIX, options.socket
    elif ":" in options.host:
        family = socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family is not socket.AF_UNIX:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        give_up(f"cannot listen on {options.socket or f'{options.host}:{options.port}'}: {error.strerror}")
    return listener


def _serve(options: argparse.Namespace, listener: socket.socket) -> None:
    import uvicorn

    from llm_runtime.core.errors import ConfigError
    from llm_runtime.engines.hf.generator import Generator, LoadOptions
    from llm_runtime.engines.hf.service import Service

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    folder = Path(options.model)
    load = LoadOptions(folder, options.dtype, options.device, options.threads)
    worker = ThreadPoolExecutor(1, thread_name_prefix="generate")
    try:
        model = worker.submit(Generator, load).result()
    except ConfigError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        worker.shutdown()
        give_up(error.message)
    service = Service(options.name or folder.absolute().name, model, worker, options.max_tokens)
    listener.listen(BACKLOG)
    print(LISTENING + _address(listener), flush=True)  # noqa: T201
    config = uvicorn.Config(
        service, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75
    )
    Server(config).run(sockets=[listener])


def _address(listener: socket.socket) -> str:
    if listener.family is socket.AF_UNIX:
        return f"unix://{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    main()
