"""What every `Backend` has to do. Subclass `BackendConformance`, give it a `backend` fixture that yields
a started backend, and describe the engine in `engine`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendError
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import Backend, BackendState, Batching, EngineStream, Finished
from tests.engines.driving import Answer, Opened, freed, make_request, open_batch, read


@dataclass(frozen=True)
class Engine:
    """Capabilities. Times are upper bounds in seconds.

    exact_length: `ignore_eos` makes an answer exactly `max_tokens` long.
    deterministic: the same request at temperature 0 gets the same text.
    plain_first_token: it is known when the first token of a plain reply was made.
    prompt_keeping_busy: a prompt that gives time to cancel before the first token.
    """

    model: str
    exact_length: bool = True
    deterministic: bool = True
    several_choices: bool = True
    completions: bool = True
    plain_first_token: bool = True
    prompt_keeping_busy: str = "Tell me everything."
    cancel_within_s: float = 2.0
    answer_within_s: float = 20.0


class BackendConformance:
    engine: Engine

    def request(self, **options: Any) -> RuntimeRequest:
        if self.engine.exact_length:
            options.setdefault("ignore_eos", True)
        return make_request(self.engine.model, **options)

    async def ask(self, backend: Backend, **options: Any) -> Answer:
        """Runs one request alone, to its end, and until the engine has freed its slots."""
        (opened,) = open_batch(backend, [self.request(**options)])
        answer = await read(opened, self.engine.answer_within_s)
        await freed(opened, self.engine.cancel_within_s)
        assert len(opened.freed) == 1
        return answer

    # ---- life

    async def test_ready_after_start(self, backend: Backend) -> None:
        assert backend.status.state is BackendState.READY
        assert backend.info.model == self.engine.model
        assert backend.info.num_slots >= 1
        assert EndpointKind.CHAT in backend.info.endpoints

    async def test_closing_is_idempotent(self, backend: Backend) -> None:
        await backend.aclose()
        await backend.aclose()
        assert backend.status.state is BackendState.STOPPED

    async def test_closing_ends_what_runs(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request(stream=True, max_tokens=1000)])
        await opened.stream.__anext__()
        await backend.aclose()
        await freed(opened, self.engine.cancel_within_s)
        assert len(opened.freed) == 1
        with pytest.raises(BackendError):
            await read(opened, self.engine.answer_within_s)

    async def test_signs_of_life_move_with_tokens(self, backend: Backend) -> None:
        await self.ask(backend)
        before = backend.signs_of_life()
        assert before is not None
        await self.ask(backend)
        after = backend.signs_of_life()
        assert after is not None
        assert after > before

    # ---- shape

    @pytest.mark.parametrize("include_usage", [False, True])
    async def test_stream_shape(self, backend: Backend, include_usage: bool) -> None:
        answer = await self.ask(backend, stream=True, include_usage=include_usage)
        assert answer.done
        assert len({event["id"] for event in answer.events}) == 1
        assert answer.events[0]["id"]
        assert {event["object"] for event in answer.events} == {"chat.completion.chunk"}
        assert {event["model"] for event in answer.events} == {self.engine.model}
        assert len({event["created"] for event in answer.events}) == 1
        assert answer.events[0]["choices"][0]["delta"]["role"] == "assistant"
        roles = [e for e in answer.events if e["choices"] and "role" in e["choices"][0]["delta"]]
        assert len(roles) == 1, "a role is said once"
        assert answer.texts[0]
        assert set(answer.reasons) == {0}
        if include_usage:
            assert answer.events[-1]["choices"] == []
            assert all(event["usage"] is None for event in answer.events[:-1])
        else:
            assert not any("usage" in event for event in answer.events)

    async def test_plain_shape(self, backend: Backend) -> None:
        answer = await self.ask(backend)
        (body,) = answer.events
        assert body["object"] == "chat.completion"
        assert body["model"] == self.engine.model
        assert body["id"]
        message = body["choices"][0]["message"]
        assert message["role"] == "assistant"
        assert message["content"]
        assert message["refusal"] is None
        assert body["choices"][0]["logprobs"] is None
        assert answer.reasons == {0: answer.finished.reason}

    async def test_stream_and_plain_agree(self, backend: Backend) -> None:
        if not self.engine.deterministic:
            pytest.skip("the engine's text varies")
        streamed = await self.ask(backend, stream=True, include_usage=True, max_tokens=20)
        plain = await self.ask(backend, max_tokens=20)
        assert streamed.texts == plain.texts
        assert streamed.reasons == plain.reasons
        assert streamed.usage is not None
        assert plain.usage is not None
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert streamed.usage[count] == plain.usage[count]

    async def test_completions(self, backend: Backend) -> None:
        if not self.engine.completions:
            pytest.skip("chat only")
        streamed = await self.ask(backend, kind=EndpointKind.COMPLETIONS, stream=True)
        assert {event["object"] for event in streamed.events} == {"text_completion"}
        assert streamed.done
        assert streamed.texts[0]
        plain = await self.ask(backend, kind=EndpointKind.COMPLETIONS)
        assert plain.events[0]["object"] == "text_completion"
        assert plain.texts[0]

    async def test_several_prompts(self, backend: Backend) -> None:
        if not self.engine.completions or backend.info.num_slots < 2:
            pytest.skip("no room for two prompts")
        answer = await self.ask(
            backend, kind=EndpointKind.COMPLETIONS, prompt=["One is", "Two is"], max_tokens=3
        )
        assert set(answer.texts) == {0, 1}
        assert set(answer.reasons) == {0, 1}

    # ---- length, stop, usage

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("max_tokens", [1, 7])
    async def test_max_tokens_and_usage_are_exact(
        self, backend: Backend, stream: bool, max_tokens: int
    ) -> None:
        if not self.engine.exact_length:
            pytest.skip("answers may end early")
        answer = await self.ask(backend, stream=stream, include_usage=True, max_tokens=max_tokens)
        assert answer.finished.reason == "length"
        assert answer.reasons == {0: "length"}
        assert answer.finished.usage.completion_tokens == max_tokens
        assert answer.finished.usage.prompt_tokens > 0
        assert not answer.finished.usage.estimated
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] == answer.finished.usage.prompt_tokens
        assert answer.usage["completion_tokens"] == max_tokens
        assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + max_tokens

    @pytest.mark.parametrize("stream", [False, True])
    async def test_stop_string_ends_the_text_before_it(self, backend: Backend, stream: bool) -> None:
        if not self.engine.deterministic:
            pytest.skip("the engine's text varies")
        whole = (await self.ask(backend, max_tokens=24)).texts[0]
        stop = whole[len(whole) // 2 - 4 : len(whole) // 2 + 4]
        answer = await self.ask(backend, stream=stream, max_tokens=24, stop=[stop])
        assert answer.texts[0] == whole[: whole.index(stop)]
        assert answer.finished.reason == "stop"

    async def test_two_choices(self, backend: Backend) -> None:
        if not self.engine.several_choices or backend.info.num_slots < 2:
            pytest.skip("one choice only")
        max_tokens = 6
        for stream in (False, True):
            # Not at temperature 0, where two answers are the same one, which some engines refuse to repeat.
            options = {"n": 2, "temperature": 0.7, "max_tokens": max_tokens, "include_usage": True}
            answer = await self.ask(backend, stream=stream, **options)
            assert set(answer.texts) == {0, 1}
            assert set(answer.reasons) == {0, 1}
            assert all(answer.texts.values())
            if self.engine.exact_length:
                assert answer.finished.usage.completion_tokens == 2 * max_tokens

    # ---- the end

    async def test_finished_is_known_with_the_last_bytes_and_comes_last(self, backend: Backend) -> None:
        for stream in (False, True):
            (opened,) = open_batch(backend, [self.request(stream=stream)])
            answer = await read(opened, self.engine.answer_within_s)
            assert answer.texts[0]
            assert opened.stream.spent() == answer.finished.usage
            assert await opened.stream.__anext__() == answer.finished
            with pytest.raises(StopAsyncIteration):
                await opened.stream.__anext__()
            await freed(opened, self.engine.cancel_within_s)

    async def test_iterating_yields_bytes_then_finished(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request(stream=True)])
        items: list[bytes | Finished] = []
        async with asyncio.timeout(self.engine.answer_within_s):
            async for item in opened.stream:
                items.append(item)
        assert isinstance(items[-1], Finished)
        assert all(isinstance(item, bytes) and item for item in items[:-1])
        await freed(opened, self.engine.cancel_within_s)

    async def test_tokens_are_marked(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request(stream=True, max_tokens=5)])
        stream = opened.stream
        assert stream.first_token_at is None
        num_with_token = 0
        async with asyncio.timeout(self.engine.answer_within_s):
            while stream.finished is None:
                item = await stream.__anext__()
                assert isinstance(item, bytes)
                chosen = [
                    choice["delta"].get("content")
                    for block in item.split(b"\n\n")
                    if block.startswith(b"data: {")
                    for choice in orjson.loads(block[6:])["choices"]
                ]
                assert stream.has_token == any(chosen)
                num_with_token += stream.has_token
        assert num_with_token >= 1
        assert stream.first_token_at is not None
        await freed(opened, self.engine.cancel_within_s)

    async def test_plain_replies_know_their_first_token(self, backend: Backend) -> None:
        if not self.engine.plain_first_token:
            pytest.skip("a plain reply comes in one piece")
        (opened,) = open_batch(backend, [self.request(max_tokens=5)])
        await read(opened, self.engine.answer_within_s)
        assert opened.stream.first_token_at is not None
        await freed(opened, self.engine.cancel_within_s)

    # ---- poke

    async def test_poke_wakes_a_pending_pull(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request(prompt=self.engine.prompt_keeping_busy)])
        pull = asyncio.ensure_future(_pull(opened.stream))
        await asyncio.sleep(0)  # one turn of the loop: the pull is under way
        assert not pull.done()
        opened.stream.poke()
        async with asyncio.timeout(self.engine.answer_within_s):
            assert await pull == b""
        assert not opened.stream.has_token
        await read(opened, self.engine.answer_within_s)
        await freed(opened, self.engine.cancel_within_s)

    async def test_poke_before_a_pull_is_not_lost(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request(prompt=self.engine.prompt_keeping_busy)])
        opened.stream.poke()
        async with asyncio.timeout(self.engine.answer_within_s):
            assert await opened.stream.__anext__() == b""
        await read(opened, self.engine.answer_within_s)
        await freed(opened, self.engine.cancel_within_s)

    # ---- cancelling

    @pytest.mark.parametrize("stream", [False, True])
    async def test_cancel_before_the_first_token(self, backend: Backend, stream: bool) -> None:
        request = self.request(stream=stream, max_tokens=500, prompt=self.engine.prompt_keeping_busy)
        (opened,) = open_batch(backend, [request])
        opened.cancel()
        opened.cancel()
        await freed(opened, self.engine.cancel_within_s)
        await self.ask(backend)
        assert len(opened.freed) == 1

    @pytest.mark.parametrize("stream", [False, True])
    async def test_cancel_under_way(self, backend: Backend, stream: bool) -> None:
        """Beside a companion who goes on, where there is room for one."""
        requests = [self.request(stream=stream, max_tokens=1000)]
        if backend.info.num_slots > 1:
            requests.append(self.request(stream=True, max_tokens=12))
        (opened, *companions) = open_batch(backend, requests)
        async with asyncio.timeout(self.engine.answer_within_s):
            for companion in companions:
                while not companion.stream.has_token:
                    await companion.stream.__anext__()
            if stream:
                await opened.stream.__anext__()
        opened.cancel()
        await freed(opened, self.engine.cancel_within_s)
        assert 0 <= opened.stream.spent().completion_tokens < 1000
        for companion in companions:
            while companion.stream.finished is None:
                await companion.stream.__anext__()
            assert companion.stream.finished.reason in ("length", "stop")
            await freed(companion, self.engine.cancel_within_s)
        await self.ask(backend)
        assert len(opened.freed) == 1

    async def test_cancel_after_the_end(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [self.request()])
        await read(opened, self.engine.answer_within_s)
        opened.cancel()
        await freed(opened, self.engine.cancel_within_s)
        opened.cancel()
        await self.ask(backend)
        assert len(opened.freed) == 1

    async def test_no_slot_leaks(self, backend: Backend) -> None:
        """Rounds of full batches, some cancelled at once, some after their first bytes, some read."""
        num_slots = backend.info.num_slots
        for round_number in range(3):
            requests = [
                self.request(stream=bool((k + round_number) % 2), max_tokens=4 + k, prompt=f"Number {k}")
                for k in range(num_slots)
            ]
            batch = open_batch(backend, requests)
            uses = (self._use(opened, (k + round_number) % 3) for k, opened in enumerate(batch))
            await asyncio.gather(*uses)
            for opened in batch:
                await freed(opened, self.engine.cancel_within_s)
            assert all(len(opened.freed) == 1 for opened in batch)

    async def _use(self, opened: Opened, how: int) -> None:
        if how == 0:
            opened.cancel()
        elif how == 1:
            async with asyncio.timeout(self.engine.answer_within_s):
                await opened.stream.__anext__()
            opened.cancel()
        else:
            await read(opened, self.engine.answer_within_s)

    # ---- batching

    async def test_a_static_engine_frees_its_last_slot_when_the_batch_is_over(self, backend: Backend) -> None:
        if backend.info.batching is not Batching.STATIC:
            pytest.skip("not a static engine")
        batch = open_batch(backend, [self.request(max_tokens=2), self.request(max_tokens=6)])
        await asyncio.gather(*(read(opened, self.engine.answer_within_s) for opened in batch))
        for opened in batch:
            await freed(opened, self.engine.cancel_within_s)
        await self.ask(backend)


async def _pull(stream: EngineStream) -> bytes | Finished:
    return await stream.__anext__()
