"""Where an upstream listens: families, TLS, and what is no address."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendUnavailable
from llm_runtime.engines.upstream import Address, Upstream
from tests.engines.upstream.stubs import (
    Stub,
    answer_all,
)
from tests.engines.upstream.talking import whole


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_f38_d_localhost_is_found_on_either_family(family: socket.AddressFamily, host: str) -> None:
    known = await asyncio.get_running_loop().getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)
    if family not in [found[0] for found in known]:
        pytest.skip("localhost has no such address here")
    listening = socket.socket(family)
    listening.bind((host, 0))
    served = Stub(answer_all)
    async with await asyncio.start_server(served.accept, sock=listening) as server:
        port = listening.getsockname()[1]
        async with Upstream(Address(host="localhost", port=port)) as upstream:
            assert await whole(upstream.request("GET", "/")) == b"ok"
            server.close()
        await served.end()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_with_and_without_a_trusted_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, [*make, *names], check=True, capture_output=True)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    served = Stub(answer_all)
    async with await asyncio.start_server(served.accept, "localhost", 0, ssl=ours) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with Upstream(Address.parse(url, trusting)) as upstream:
            assert await whole(upstream.request("GET", "/")) == b"ok"
        async with Upstream(Address.parse(url)) as upstream:
            with pytest.raises(BackendUnavailable) as refused:
                await upstream.request("GET", "/").head()
            assert isinstance(refused.value.__cause__, ssl.SSLError)
        server.close()
        await served.end()


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://example.com", "example.com"),
        ("https://example.com:8443", "example.com:8443"),
        ("https://example.com", "example.com"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("unix:///run/engine.sock", "localhost"),
    ],
)
def test_addresses(url: str, host_header: str) -> None:
    address = Address.parse(url)
    assert address.host_header == host_header
    assert (address.ssl_context is not None) == url.startswith("https")
    assert address.unix_path == (url.removeprefix("unix://") if url.startswith("unix") else None)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "unix://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        Address.parse(url)
