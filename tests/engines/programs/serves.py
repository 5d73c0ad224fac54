"""An engine whose health says 503 while it loads. Arguments: port, seconds of loading."""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

ready_at = time.monotonic() + float(sys.argv[2])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = 200 if self.path == "/v1/models" or time.monotonic() >= ready_at else 503
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(f"LISTENING http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
