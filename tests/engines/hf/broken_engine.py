"""An engine program whose every answer fails and whose probe says that it always will."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from llm_runtime.engines.hf.service import Service
from tests.engines.hf.fake_model import FakeModel


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(path: str) -> None:
    model = FakeModel()
    model.failure = RuntimeError("an illegal memory access was encountered")
    model.broken = RuntimeError("and everything after it fails as well")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("LISTENING", flush=True)
    service = Service("m", model, ThreadPoolExecutor(1), 5)
    Server(uvicorn.Config(service, lifespan="off", log_config=None)).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
