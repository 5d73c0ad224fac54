"""What both ways to run vLLM have to do beyond the shared suite; subclassed with a `backend` fixture."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import ContextLengthExceeded, InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import Backend
from tests.engines.driving import freed, make_request, open_batch, read
from tests.engines.vllm.support import ENGINE, MODEL, NUM_SLOTS

COMPLETIONS = EndpointKind.COMPLETIONS
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}


class VllmBehaviour:
    async def whole(self, backend: Backend, **options: Any) -> dict[str, Any]:
        (opened,) = open_batch(backend, [make_request(MODEL, **options)])
        answer = await read(opened, ENGINE.answer_within_s)
        await freed(opened, ENGINE.cancel_within_s)
        return answer.events[-1]

    async def test_the_context_is_what_vllm_says(self, backend: Backend) -> None:
        assert backend.info.context_tokens == 2048
        assert backend.info.num_slots == NUM_SLOTS

    async def test_a_full_batch_runs_at_once(self, backend: Backend) -> None:
        """The last of eight has its first token before the first of them is finished."""
        requests = [
            make_request(MODEL, stream=True, max_tokens=40, ignore_eos=True, prompt=f"Number {k}.")
            for k in range(NUM_SLOTS)
        ]
        batch = open_batch(backend, requests)
        finished_at: list[float] = []

        async def drive(position: int) -> None:
            answer = await read(batch[position], ENGINE.answer_within_s)
            assert answer.finished.usage.completion_tokens == 40
            finished_at.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(drive(position) for position in range(NUM_SLOTS)))
        started_at = [opened.stream.first_token_at for opened in batch]
        assert max(at for at in started_at if at is not None) < min(finished_at)
        for opened in batch:
            await freed(opened, ENGINE.cancel_within_s)

    async def test_a_prompt_that_begins_alike_is_partly_cached(self, backend: Backend) -> None:
        prompt = "In the beginning there was a long and quiet river. " * 30
        first = await self.whole(backend, prompt=prompt + "One.", max_tokens=2)
        second = await self.whole(backend, prompt=prompt + "Two.", max_tokens=2)
        cached = [usage["usage"]["prompt_tokens_details"]["cached_tokens"] for usage in (first, second)]
        assert cached[0] == 0
        assert cached[1] > second["usage"]["prompt_tokens"] / 2, "it counts in whole blocks"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_log_probabilities(self, backend: Backend, stream: bool) -> None:
        (opened,) = open_batch(
            backend, [make_request(MODEL, stream=stream, max_tokens=4, logprobs=True, top_logprobs=2)]
        )
        answer = await read(opened, ENGINE.answer_within_s)
        entries = [
            entry
            for event in answer.events
            for choice in event["choices"]
            if choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
        assert len(entries) == answer.finished.usage.completion_tokens
        assert "".join(entry["token"] for entry in entries) == answer.texts[0]
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        assert all(entry["logprob"] <= 0 for entry in entries)

    async def test_legacy_log_probabilities_keep_their_shape(self, backend: Backend) -> None:
        options: dict[str, Any] = {"kind": COMPLETIONS, "prompt": "One, two,", "max_tokens": 4, "logprobs": 2}
        streamed: list[str] = []
        plain = await self.whole(backend, **options)
        (opened,) = open_batch(backend, [make_request(MODEL, stream=True, **options)])
        for event in (await read(opened, ENGINE.answer_within_s)).events:
            streamed += event["choices"][0]["logprobs"]["tokens"] if event["choices"] else []
        logprobs = plain["choices"][0]["logprobs"]
        assert "".join(logprobs["tokens"]) == plain["choices"][0]["text"]
        assert logprobs["tokens"] == streamed
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 4
        assert logprobs["text_offset"][0] == 0

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_named_tool_is_called_with_arguments_of_its_schema(
        self, backend: Backend, stream: bool
    ) -> None:
        choice = {"type": "function", "function": {"name": "weather"}}
        request = make_request(
            MODEL, stream=stream, max_tokens=200, prompt="Weather in Oslo?", tools=[TOOL], tool_choice=choice
        )
        (opened,) = open_batch(backend, [request])
        answer = await read(opened, ENGINE.answer_within_s)
        calls: list[dict[str, Any]] = []
        for event in answer.events:
            for chosen in event["choices"]:
                calls += (chosen.get("message") or chosen["delta"]).get("tool_calls") or ()
        arguments = "".join(call["function"].get("arguments") or "" for call in calls)
        assert orjson.loads(arguments)["city"] in ("Rome", "Oslo")
        assert calls[0]["function"]["name"] == "weather"
        assert calls[0]["id"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_answer_of_a_schema(self, backend: Backend, stream: bool) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}}
        request = make_request(MODEL, stream=stream, max_tokens=30, response_format=schema)
        (opened,) = open_batch(backend, [request])
        answer = await read(opened, ENGINE.answer_within_s)
        assert isinstance(orjson.loads(answer.texts[0])["yes"], bool)

    async def test_what_only_whole_answers_have(self, backend: Backend) -> None:
        body = await self.whole(backend, max_tokens=3, return_token_ids=True, ignore_eos=True)
        assert len(body["choices"][0]["token_ids"]) == 3
        assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
        assert body["model"] == MODEL
        plain = await self.whole(backend, kind=COMPLETIONS, prompt="One two", max_tokens=2, prompt_logprobs=1)
        scores = plain["choices"][0]["prompt_logprobs"]
        assert scores[0] is None
        assert all(math.isfinite(entry["logprob"]) for entry in scores[1].values())

    async def test_a_prompt_longer_than_the_context_is_refused_in_the_apis_words(
        self, backend: Backend
    ) -> None:
        for stream in (False, True):
            (opened,) = open_batch(backend, [make_request(MODEL, stream=stream, prompt="word " * 3000)])
            with pytest.raises(ContextLengthExceeded, match="2048"):
                await read(opened, ENGINE.answer_within_s)
            await freed(opened, ENGINE.cancel_within_s)

    async def test_an_answer_ends_at_the_context(self, backend: Backend) -> None:
        body = await self.whole(backend, prompt="word " * 1990, max_tokens=2000, ignore_eos=True)
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["total_tokens"] == 2048

    async def test_values_that_vllm_refuses_name_the_field(self, backend: Backend) -> None:
        (opened,) = open_batch(backend, [make_request(MODEL, stream=True, top_k=-7)])
        with pytest.raises(InvalidRequest, match="top_k"):
            await read(opened, ENGINE.answer_within_s)
        await freed(opened, ENGINE.cancel_within_s)

    async def test_cancelling_a_full_batch_makes_room_for_the_next(self, backend: Backend) -> None:
        """All eight slots are taken for as long as nobody cancels; what follows starts at once."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            batch = open_batch(
                backend,
                [
                    make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True)
                    for _ in range(NUM_SLOTS)
                ],
            )
            async with asyncio.timeout(ENGINE.answer_within_s):
                for opened in batch:
                    while not opened.stream.has_token:
                        await opened.stream.__anext__()
            for opened in batch:
                opened.cancel()
            for opened in batch:
                await freed(opened, ENGINE.cancel_within_s)
        begun = loop.time()
        requests = [
            make_request(MODEL, stream=True, max_tokens=4, ignore_eos=True, prompt=f"{k}")
            for k in range(NUM_SLOTS)
        ]
        for opened in open_batch(backend, requests):
            await read(opened, ENGINE.answer_within_s)
        assert loop.time() - begun < 20, "1,500 tokens each would take minutes"
