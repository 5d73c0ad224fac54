"""F55, F38: when an upstream counts as there, and how gently it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.config import OpenAIConfig
from llm_runtime.engines.openai.backend import OpenAIBackend
from tests.engines.driving import make_request, open_batch, read
from tests.engines.openai.upstreams import NO_HEALTH, Fake, fake_upstream, header, reply
from tests.engines.upstream.stubs import Peer, turns_until
from tests.support.recorder import Changes

OK = reply({"status": "ok"})
LOADING = reply({"error": {"message": "Loading model", "code": 503}}, "503 Service Unavailable")


class Watched(Changes):
    """A backend, and a way to wait for its state."""

    def __init__(self, backend: OpenAIBackend) -> None:
        super().__init__()
        self.backend = backend
        self.states: list[tuple[BackendState, str | None]] = []

    def changed(self) -> None:
        self.states.append((self.backend.status.state, self.backend.status.reason))
        self.note()

    async def becomes(self, state: BackendState) -> None:
        await self.until(lambda: self.backend.status.state is state, state.value)


def backend_of(url: str, **config: Any) -> OpenAIBackend:
    quick = {"health_interval_s": 0.05, "health_timeout_s": 5.0, **config}
    return OpenAIBackend(
        OpenAIConfig(url=url, **quick),
        model_name=None,
        num_slots=8,
        model_created=1,
        default_max_tokens=None,
        clock=SystemClock(),
    )


@contextlib.asynccontextmanager
async def watched(fake: Fake, **config: Any) -> AsyncIterator[Watched]:
    it = Watched(backend_of(fake.url, **config))
    try:
        with contextlib.suppress(BackendUnavailable):
            await it.backend.start(it.changed)
        yield it
    finally:
        await it.backend.aclose()


async def test_f55_e_without_health_the_list_of_models_is_asked() -> None:
    async with fake_upstream() as fake, watched(fake) as it:
        assert it.backend.status.state is BackendState.READY
        await turns_until(lambda: len(fake.looks) >= 6)
        assert fake.looks.count("/health") == 1, "that it has none is learnt once"
        assert it.backend.status.state is BackendState.READY


async def test_health_is_asked_where_there_is_one() -> None:
    async with fake_upstream(health=OK) as fake, watched(fake) as it:
        await turns_until(lambda: fake.looks.count("/health") >= 4)
        assert fake.looks.count("/v1/models") == 1
        assert it.backend.status.state is BackendState.READY


async def test_f55_d_looks_carry_the_key_and_the_path_can_be_set() -> None:
    async with fake_upstream(health=OK) as fake, watched(fake, api_key="k-1", health_path="/ping"):
        await turns_until(lambda: "/ping" in fake.looks)
        assert "/health" not in fake.looks
        assert all(header(request, "authorization") == "Bearer k-1" for request in fake.server.requests)


async def test_a_set_path_that_is_not_there_is_no_health() -> None:
    async with fake_upstream() as fake, watched(fake, health_path="/ping") as it:
        assert it.backend.status.state is BackendState.CRASHED
        assert it.backend.status.reason == "the upstream answers its health check with status 404"


async def test_f38_c_not_ready_while_it_loads_though_it_lists_models() -> None:
    async with fake_upstream(health=LOADING) as fake, watched(fake) as it:
        assert it.backend.status.state is BackendState.CRASHED
        assert it.backend.status.fail_fast
        fake.health = OK
        await it.becomes(BackendState.READY)


def _looked(fake: Fake, since: int) -> bool:
    return fake.looks.count("/health") > since


async def test_f55_f_every_second_look_a_miss() -> None:
    """It never goes out of rotation."""
    async with fake_upstream(health=OK) as fake, watched(fake) as it:
        for number in range(12):
            seen = fake.looks.count("/health")
            fake.health = LOADING if number % 2 else OK
            await turns_until(partial(_looked, fake, seen))
        assert not [state for state, _ in it.states if state is not BackendState.READY]


async def test_misses_in_a_row_are_its_end_and_one_look_its_return() -> None:
    async with fake_upstream(health=OK) as fake, watched(fake, max_health_misses=3) as it:
        fake.health = LOADING
        await it.becomes(BackendState.CRASHED)
        assert "503" in (it.backend.status.reason or "")
        fake.models = ["m", "n"]
        fake.health = OK
        await it.becomes(BackendState.READY)
        assert it.backend.info.names == ("m", "n"), "who comes back may have other models"


async def test_f55_c_a_look_that_takes_long_is_waited_for() -> None:
    async with fake_upstream(health=OK) as fake, watched(fake, health_timeout_s=0.05) as it:
        gate = asyncio.Event()
        fake.hold = gate
        await it.becomes(BackendState.CRASHED)
        assert it.backend.status.reason == "the upstream does not answer in time"
        fake.hold = None
        gate.set()
        await it.becomes(BackendState.READY)


async def test_no_look_while_answers_flow() -> None:
    """Who sends tokens is well."""
    clock = SystemClock()
    async with fake_upstream(health=OK) as fake, watched(fake, health_interval_s=0.3) as it:
        looks = len(fake.looks)
        until = clock.now() + 1.2
        while clock.now() < until:
            (opened,) = open_batch(it.backend, [make_request("m")])
            await read(opened, 5.0)
        assert len(fake.looks) == looks


async def test_a_connection_that_is_refused_is_looked_into_at_once() -> None:
    async with fake_upstream(health=OK) as fake, watched(fake, health_interval_s=30.0) as it:
        await fake.server.stop_listening()
        (opened,) = open_batch(it.backend, [make_request("m")])
        with pytest.raises(BackendError):
            await read(opened, 5.0)
        await it.becomes(BackendState.CRASHED)
        assert it.backend.status.reason == "the upstream does not accept connections"


async def test_f38_a_another_server_at_the_address() -> None:
    async def script(peer: Peer, request: bytes) -> None:
        await peer.send(reply(b"<html>hello</html>", "200 OK", "text/html"))

    async with fake_upstream(script, health=OK) as fake:
        fake.listing = reply(b"<html>hello</html>", "200 OK", "text/html")
        async with watched(fake) as it:
            assert it.backend.status.state is BackendState.CRASHED
            assert "no OpenAI-compatible server" in (it.backend.status.reason or "")


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        (reply({}, "401 Unauthorized"), "the upstream refuses the configured credentials"),
        (NO_HEALTH, "the upstream lists no models; name them in engines.openai.models"),
        (reply({"data": []}), "the upstream lists no models; name them in engines.openai.models"),
        (reply({}, "500 Internal Server Error"), "the upstream answers with status 500"),
    ],
)
async def test_why_it_is_not_ready(listing: bytes, reason: str) -> None:
    async with fake_upstream(health=OK) as fake:
        fake.listing = listing
        backend = backend_of(fake.url)
        try:
            with pytest.raises(BackendUnavailable) as caught:
                await backend.start(lambda: None)
            assert caught.value.message == f"The upstream is not there: {reason}."
            assert (backend.status.state, backend.status.reason) == (BackendState.CRASHED, reason)
        finally:
            await backend.aclose()


async def test_named_models_need_no_list() -> None:
    async with fake_upstream(health=OK) as fake:
        fake.listing = NO_HEALTH
        async with watched(fake, models=("a=b",)) as it:
            assert it.backend.status.state is BackendState.READY
            assert it.backend.info.names == ("a",)


async def test_f38_e_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with fake_upstream() as fake, watched(fake) as it:
        assert it.backend.status.state is BackendState.READY


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate of 127.0.0.1 in one file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", file.with_suffix(".key"),
         "-out", file.with_suffix(".crt"), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_text(file.with_suffix(".key").read_text() + file.with_suffix(".crt").read_text())
    return file


@pytest.mark.parametrize("how", ["unverified", "trusted", "untrusted"])
async def test_f31_g_certificates(certificate: Path, how: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(reply({"data": [{"id": "m"}]}) if b"/models" in request else OK)
                await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    configs: dict[str, dict[str, Any]] = {
        "unverified": {"tls_verify": False},
        "trusted": {"tls_ca_file": str(certificate)},
        "untrusted": {},
    }
    backend = backend_of(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", **configs[how])
    try:
        if how == "untrusted":
            with pytest.raises(BackendUnavailable):
                await backend.start(lambda: None)
            assert backend.status.reason == "the upstream's TLS certificate is not accepted"
        else:
            await backend.start(lambda: None)
            assert backend.status.state is BackendState.READY
    finally:
        await backend.aclose()
        server.close()
        await server.wait_closed()
