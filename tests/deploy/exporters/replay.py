"""A scrape that was recorded once, served again and again as if the program went on working.

Counters and histograms grow with every scrape by what they were at the recording; gauges stand still at
values given here, because a recording of an idle engine shows zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[], str]


def replay(recorded: str, gauges: Mapping[str, float]) -> Page:
    """gauges: their values by name. Raises KeyError for one that is not in the recording."""
    kinds = dict(line.split()[2:4] for line in recorded.splitlines() if line.startswith("# TYPE"))
    for name in gauges:
        if kinds[name] != "gauge":
            raise KeyError(name)
    scrapes = count(1)

    def page() -> str:
        number = next(scrapes)
        return "".join(f"{_moved(line, kinds, gauges, number)}\n" for line in recorded.splitlines())

    return page


def _moved(line: str, kinds: Mapping[str, str], gauges: Mapping[str, float], number: int) -> str:
    if line.startswith("#"):
        return line
    series, _, value = line.rpartition(" ")
    name = series.partition("{")[0]
    if kinds.get(name) == "gauge":
        return f"{series} {gauges.get(name, float(value))}"
    return f"{series} {float(value) * number}"


@contextmanager
def serving(page: Page) -> Iterator[str]:
    """Gives `host:port`; every GET is answered with the page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test's output is for its failures."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
