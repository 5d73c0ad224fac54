"""Stands in for `vllm serve` where only starting and ending matter. FAKE_MODE says how it behaves.

ok         answers /health, and /v1/models to whoever has the key; says what it was started with
impostor   answers everybody, as another server on the port would
usage      ends as vLLM does when it does not know an argument
broken     prints a traceback and ends
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"data": [{"id": "m", "max_model_len": 321, "argv": sys.argv[1:]}]}
        if self.path == "/metrics":
            self.answer(200, b'vllm:generation_tokens_total{engine="0"} 7.0\nvllm:other 1.0\n')
        elif self.path == "/v1/models" and not self.has_key():
            self.answer(401, b"{}")
        else:
            self.answer(200, json.dumps(body).encode())

    def has_key(self) -> bool:
        key = os.environ.get("VLLM_API_KEY", "")
        return MODE == "impostor" or self.headers.get("authorization") == f"Bearer {key}"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None: ...


class UnixServer(http.server.ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


def argument(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


MODE = os.environ.get("FAKE_MODE", "ok")

if __name__ == "__main__":
    print("INFO loading weights", flush=True)
    if MODE == "usage":
        print("vllm: error: unrecognized arguments: --nonsense", file=sys.stderr)
        sys.exit(2)
    if MODE == "broken":
        print("RuntimeError: no such weights", file=sys.stderr)
        sys.exit(1)
    socket_path, port = argument("--uds"), argument("--port")
    if socket_path is not None:
        UnixServer(socket_path, Handler).serve_forever()  # type: ignore[arg-type]
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port or 0)), Handler).serve_forever()
