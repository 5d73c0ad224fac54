"""`llm-runtime chat` against a real HTTP server that says what an engine might."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llm_runtime.cli import app

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Names one model, then answers a chat as the server's `answer` says."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers), None))
        self.reply(200, json.dumps({"object": "list", "data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
        self.server.answer(self)

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send(self, data: str) -> None:
        raw = data.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))

    def event(self, text: str | None, finish_reason: str | None = None) -> None:
        delta = {} if text is None else {"content": text}
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self.send(f"data: {json.dumps({'choices': [choice]})}\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.seen: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    with Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def chat(url: str, *arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["chat", *arguments, "--url", url], env=env, input=stdin)


def hello(handler: Handler) -> None:
    handler.begin()
    handler.send(": keep-alive\n\n")
    handler.event("")
    handler.event("Hel")
    handler.event("lo\x1b[2J, wörld\n")
    handler.event(None, "stop")
    handler.send('data: {"choices":[],"usage":{"total_tokens":3}}\n\n')
    handler.send("data: [DONE]\n\n")
    handler.send("")


def test_the_answer_is_printed_without_what_a_terminal_would_obey() -> None:
    with serving(hello) as server:
        result = chat(server.url, "Hi there")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello[2J, wörld\n\n", "")
    (path, _, _), (chat_path, headers, body) = server.seen
    assert (path, chat_path) == ("/v1/models", "/v1/chat/completions")
    assert "Authorization" not in {name.title() for name in headers}
    assert body == {"model": "tiny", "messages": [{"role": "user", "content": "Hi there"}], "stream": True}


def test_the_options_reach_the_server() -> None:
    env = {
        "LLM_RUNTIME_API_KEYS": "k1, k2",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    with serving(hello) as server:
        arguments = ["--model", "m", "--max-tokens", "7"]
        result = chat(f"{server.url}/base/v1/", *arguments, env=env, stdin="from a pipe")
        assert result.exit_code == 0
        assert chat(server.url, "x", "--api-key", "k3", env=env).exit_code == 0
    (path, headers, body), *_, (_, other_headers, _) = server.seen
    assert path == "/base/v1/chat/completions"
    assert headers["authorization"] == "Bearer k1"
    assert other_headers["authorization"] == "Bearer k3"
    assert (body["model"], body["max_tokens"]) == ("m", 7)
    assert body["messages"][0]["content"] == "from a pipe"


def test_an_answer_cut_at_the_token_limit_says_so() -> None:
    def answer(handler: Handler) -> None:
        handler.begin()
        handler.event("one", "length")
        handler.send("data: [DONE]\n\n")
        handler.send("")

    with serving(answer) as server:
        result = chat(server.url, "x")
    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert "--max-tokens" in result.stderr


def error_in_stream(handler: Handler) -> None:
    handler.begin()
    handler.event("half")
    handler.send('data: {"error":{"message":"the engine died","type":"server_error"}}\n\n')
    handler.send("")


def no_done(handler: Handler) -> None:
    handler.begin()
    handler.event("half")
    handler.send("")


def cut(handler: Handler) -> None:
    handler.begin()
    handler.event("half")
    handler.close_connection = True


def not_json(handler: Handler) -> None:
    handler.begin()
    handler.event("half")
    handler.send("data: {nonsense\n\n")
    handler.send("")


def unauthorized(handler: Handler) -> None:
    handler.reply(401, '{"error":{"message":"no such key","type":"x","code":"invalid_api_key","param":null}}')


def a_web_page(handler: Handler) -> None:
    handler.reply(404, "<html>nothing here</html>")


@pytest.mark.parametrize(
    ("answer", "stdout", "told"),
    [
        (error_in_stream, "half\n", "the server ended the answer: the engine died"),
        (no_done, "half\n", "the connection ended before the answer did"),
        (cut, "half\n", "the connection ended before the answer did"),
        (not_json, "half\n", "does not answer as a server of ours would"),
        (unauthorized, "", "the server answers 401: no such key"),
        (a_web_page, "", "the server answers 404: Not Found; is this an OpenAI-compatible server?"),
    ],
)
def test_a_failure_is_told_on_stderr_with_exit_code_1(answer: Answer, stdout: str, told: str) -> None:
    with serving(answer) as server:
        result = chat(server.url, "x")
    assert (result.exit_code, result.stdout) == (1, stdout)
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_server_the_way_to_start_one_is_told() -> None:
    with Server(hello) as server:
        url = server.url
    result = chat(url, "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"no server answers at {url}" in result.stderr
    assert "llm-runtime serve" in result.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    result = chat(url, "x")
    assert result.exit_code == 2
    assert "http://127.0.0.1:8000" in result.stderr


def test_an_interrupt_closes_the_connection_which_cancels_the_request() -> None:
    closed = threading.Event()

    def answer(handler: Handler) -> None:
        handler.begin()
        handler.event("first")
        if handler.rfile.read(1) == b"":
            closed.set()
        handler.close_connection = True

    with serving(answer) as server:
        command = [sys.executable, "-c", "from llm_runtime.cli import app; app()", "chat", "x"]
        with subprocess.Popen(
            [*command, "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        ) as child:
            assert child.stdout is not None
            assert child.stdout.read(5) == b"first"
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=10)
        assert (child.returncode, output, errors) == (130, b"\n", b"")
        assert closed.wait(10)
