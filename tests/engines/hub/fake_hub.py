"""A server that speaks the hub's protocol over real sockets, and misbehaves as told.

The API is answered here; files of the large kind are redirected to a second server, on another port
and so another origin, as the hub does it with its storage.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/model"


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Request:
    """As it arrived. server: `hub` or `storage`."""

    server: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Answer:
    """What comes instead of the proper answer, once."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


@dataclass
class FakeHub:
    """files: by name. large: those kept in the storage, with a sha256; the others have git's checksum.

    cuts: by file, how many bytes of each answer's body are sent before the connection is dropped, one
    number for each answer, those used up are gone. answers: by a part of the path, what comes instead,
    likewise. sent: by file, what is sent in its place. with_ranges: whether Range is honoured.
    stall_after: by file, how many bytes of each answer are sent before it goes silent: then `stalled`
    is set and `resume` waited for. with_checksums: whether the listing has any. token: without it
    nothing is answered.
    """

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    cuts: dict[str, list[int]] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    stall_after: dict[str, int] = field(default_factory=dict)
    stalled: threading.Event = field(default_factory=threading.Event)
    resume: threading.Event = field(default_factory=threading.Event)
    with_ranges: bool = True
    with_checksums: bool = True
    token: str | None = None
    commit: str = COMMIT
    hub_url: str = ""
    storage_url: str = ""
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    num_at_once: int = 0
    most_at_once: int = 0
    gate: threading.Barrier | None = None
    """Downloads wait here for one another, so that a test can tell that they are at once."""

    def gets(self, name: str) -> list[Request]:
        """Requests for the content of a file, from wherever it finally came."""
        where = "storage" if name in self.large else "hub"
        return [
            request
            for request in self.requests
            if request.server == where and request.method == "GET" and request.path.endswith(name)
        ]

    def listing(self) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name}
            if self.with_checksums:
                entry |= {"size": len(content), "blobId": git_oid(content)}
                if name in self.large:
                    digest = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        return {"id": REPO, "sha": self.commit, "siblings": siblings}


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Both servers, on loopback, while the block runs."""
    servers = [_Server(hub, "hub"), _Server(hub, "storage")]
    hub.hub_url, hub.storage_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, hub: FakeHub, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.name = name

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may give up
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        hub, name = self.server.hub, self.server.name
        path = unquote(urlsplit(self.path).path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        with hub.lock:
            hub.requests.append(Request(name, self.command, path, headers))
            instead = next(
                (queue.pop(0) for part, queue in hub.answers.items() if part in path and queue), None
            )
        if instead is not None:
            self._answer(instead.status, instead.body, instead.headers)
        elif name == "storage":
            self._content(path.removeprefix("/"))
        elif hub.token is not None and headers.get("authorization") != f"Bearer {hub.token}":
            self._answer(401, b'{"error":"Invalid username or password."}', {})
        elif re.fullmatch(rf"/api/models/{REPO}/revision/(main|v1|{hub.commit})", path):
            self._answer(200, json.dumps(hub.listing()).encode(), {"content-type": "application/json"})
        elif re.fullmatch(rf"/api/models/{REPO}/tree/{hub.commit}", path):
            self._answer(200, json.dumps(self._tree()).encode(), {"content-type": "application/json"})
        elif match := re.fullmatch(rf"/{REPO}/resolve/{hub.commit}/(.+)", path):
            self._resolve(match[1])
        else:
            code = "RepoNotFound" if not path.startswith(f"/api/models/{REPO}/") else "RevisionNotFound"
            self._answer(404, b'{"error":"Not found"}', {"x-error-code": code})

    def _tree(self) -> list[dict[str, Any]]:
        """The listing in another shape, for other clients of the protocol."""
        return [
            {
                "type": "file",
                "path": entry["rfilename"],
                "size": entry["size"],
                "oid": entry["blobId"],
                **({"lfs": {"oid": entry["lfs"]["sha256"], **entry["lfs"]}} if "lfs" in entry else {}),
            }
            for entry in self.server.hub.listing()["siblings"]
        ]

    def _resolve(self, name: str) -> None:
        hub = self.server.hub
        content = hub.files.get(name)
        if content is None:
            self._answer(404, b"Entry not found", {"x-error-code": "EntryNotFound"})
        elif name in hub.large:
            digest = hashlib.sha256(content).hexdigest()
            linked = {"x-linked-etag": f'"{digest}"', "x-linked-size": str(len(content))}
            self._answer(302, b"", {"location": f"{hub.storage_url}/{name}", **linked, **self._commit()})
        else:
            self._content(name)

    def _commit(self) -> dict[str, str]:
        return {"x-repo-commit": self.server.hub.commit}

    def _content(self, name: str) -> None:
        hub = self.server.hub
        content = hub.sent.get(name, hub.files[name])
        start = 0
        status = 200
        headers = {"etag": f'"{git_oid(content)}"', **self._commit()}
        if hub.with_ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))):
            start = int(match[1])
            if start >= len(content):
                self._answer(416, b"", {"content-range": f"bytes */{len(content)}"})
                return
            status = 206
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = None
        if self.command == "GET":
            with hub.lock:
                cut = hub.cuts[name].pop(0) if hub.cuts.get(name) else None
            if name in hub.stall_after:
                self._stall(content, headers)
                return
        self._counted(status, content[start:], headers, cut)

    def _stall(self, content: bytes, headers: dict[str, str]) -> None:
        hub = self.server.hub
        self._answer(200, content, headers, cut=next(iter(hub.stall_after.values())))
        hub.stalled.set()
        hub.resume.wait(30)

    def _counted(self, status: int, body: bytes, headers: dict[str, str], cut: int | None) -> None:
        hub = self.server.hub
        with hub.lock:
            hub.num_at_once += 1
            hub.most_at_once = max(hub.most_at_once, hub.num_at_once)
        try:
            if hub.gate is not None:
                hub.gate.wait(10)
            self._answer(status, body, headers, cut)
        finally:
            with hub.lock:
                hub.num_at_once -= 1

    def _answer(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
