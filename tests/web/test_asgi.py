"""Headers, request ids, and the watch over a connection, on hand-made ASGI channels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.web.asgi import headers_of, request_id_of
from llm_runtime.web.disconnect import DisconnectWatch

SAFE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"


def test_of_a_repeated_header_the_first_counts() -> None:
    scope = {"headers": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}
    assert headers_of(scope) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("given_id", ["a", "req-1", "7f3a:1.2_x", "x" * 128])
def test_a_safe_request_id_is_kept(given_id: str) -> None:
    assert request_id_of({b"x-request-id": given_id.encode()}) == given_id


@pytest.mark.parametrize(
    "given_id",
    ["", "x" * 129, "a b", "a\tb", 'a"b', "-a", "a\nlevel=ERROR", "a;b", "a/b", "{a}", "\u00e9"],
)
def test_an_unsafe_request_id_is_replaced(given_id: str) -> None:
    made = request_id_of({b"x-request-id": given_id.encode("latin-1")})
    assert made.startswith("req_")
    assert made != request_id_of({})


def test_ids_are_made_in_batches_and_none_comes_twice() -> None:
    made = [request_id_of({}) for _ in range(1000)]
    assert len(set(made)) == 1000
    assert {len(one) for one in made} == {len("req_") + 32}


@given(st.binary(max_size=200))
def test_whatever_is_sent_the_id_is_safe(raw: bytes) -> None:
    made = request_id_of({b"x-request-id": raw})
    assert 1 <= len(made) <= 128
    assert set(made) <= set(SAFE)


# ---- the watch


class Channel:
    """ASGI's `receive`, fed by the test."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()

    def put(self, message: dict[str, Any] | Exception) -> None:
        self._messages.put_nowait(message)

    async def receive(self) -> dict[str, Any]:
        message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message


async def test_the_watch_tells_of_a_disconnect_and_of_nothing_else() -> None:
    channel, gone = Channel(), asyncio.Event()
    async with DisconnectWatch(channel.receive, gone.set):
        channel.put({"type": "http.request", "body": b"more", "more_body": True})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not gone.is_set()
        channel.put({"type": "http.disconnect"})
        async with asyncio.timeout(1):
            await gone.wait()


async def test_leaving_ends_the_watch_before_the_block_is_over() -> None:
    channel, gone = Channel(), asyncio.Event()
    before = asyncio.all_tasks()
    async with DisconnectWatch(channel.receive, gone.set):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert not gone.is_set()


async def test_a_watch_that_never_ran_ends_too() -> None:
    async with DisconnectWatch(Channel().receive, lambda: None):
        pass
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_cannot_tell_counts_as_gone() -> None:
    channel, gone = Channel(), asyncio.Event()
    async with DisconnectWatch(channel.receive, gone.set):
        channel.put(RuntimeError("broken"))
        async with asyncio.timeout(1):
            await gone.wait()


@pytest.mark.parametrize("disconnected", [False, True])
async def test_a_cancellation_while_leaving_is_not_swallowed(disconnected: bool) -> None:
    """The watch's own CancelledError must not be taken for one meant for its owner, nor hide it."""
    channel, left = Channel(), asyncio.Event()

    async def owner() -> None:
        async with DisconnectWatch(channel.receive, lambda: None):
            await asyncio.sleep(0)
            if disconnected:
                channel.put({"type": "http.disconnect"})
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        left.set()

    task = asyncio.ensure_future(owner())
    await asyncio.wait([task])
    assert task.cancelled()
    assert not left.is_set()
    assert len(asyncio.all_tasks()) == 1
