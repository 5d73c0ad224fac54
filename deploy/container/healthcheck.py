"""The image's health check: whether requests sent now can be served. Exit status 0 or 1; one line why.

Asks over loopback. Uses only the standard library, so that it costs some 50 ms of processor time.
"""

import http.client
import os
import sys

DEFAULT_PORT = 8000
TIMEOUT_S = 4.0


def main() -> int:
    # Kubernetes sets the variable to tcp://... for a Service of that name; the server ignores that too.
    said = os.environ.get("LLM_RUNTIME_PORT", "")
    port = int(said) if said.isdigit() else DEFAULT_PORT
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        reply = connection.getresponse()
        sys.stdout.write(f"{reply.status} {reply.read(500).decode(errors='replace')}\n")
    except OSError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0 if reply.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
