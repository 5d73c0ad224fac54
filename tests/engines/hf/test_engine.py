"""What the suite for all engines does not ask of the real engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from llm_runtime.core.errors import BackendCrashed, ConfigError, ContextLengthExceeded, InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.hf.backend import HfBackend
from tests.engines.driving import Answer, Opened, freed, make_request, open_batch, read
from tests.engines.hf.conftest import MODEL, make_backend, running_backend

pytestmark = [pytest.mark.hf, pytest.mark.asyncio(loop_scope="module")]

WITHIN_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HfBackend]:
    async with running_backend(weights, tmp_path_factory.mktemp("hf")) as backend:
        yield backend


async def ask(backend: HfBackend, **options: Any) -> Answer:
    (opened,) = open_batch(backend, [make_request(MODEL, **options)])
    answer = await read(opened, WITHIN_S)
    await freed(opened, WITHIN_S)
    return answer


async def text(backend: HfBackend, **options: Any) -> str:
    return (await ask(backend, **options)).texts[0]


def process_of(backend: HfBackend) -> Any:
    life = backend._life
    assert life is not None
    return life.process


async def test_it_says_how_long_its_context_is(backend: HfBackend) -> None:
    assert backend.info.context_tokens == 8192
    assert backend.info.num_slots == 1


async def test_an_answer_that_ends_by_itself_says_so_and_counts_its_end(backend: HfBackend) -> None:
    answer = await ask(backend, prompt="What is the capital of France?", max_tokens=16)
    assert answer.texts[0] == "The capital of France is Paris."
    assert answer.finished.reason == "stop"
    assert answer.finished.usage.completion_tokens == 8, "seven of text and the one that ends it"


async def test_the_prompt_is_counted_exactly(backend: HfBackend) -> None:
    short = await ask(backend, kind=EndpointKind.COMPLETIONS, prompt=[1, 2, 3], max_tokens=1)
    assert short.finished.usage.prompt_tokens == 3


async def test_parts_of_a_message_are_its_lines(backend: HfBackend) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    in_parts = await ask(backend, prompt=parts, max_tokens=4)
    in_one = await ask(backend, prompt="What is the capital\nof France?", max_tokens=4)
    assert in_parts.texts == in_one.texts
    assert in_parts.finished.usage == in_one.finished.usage


async def test_a_seed_makes_samples_repeatable(backend: HfBackend) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True}
    first = await text(backend, seed=1, **options)
    assert await text(backend, seed=1, **options) == first
    assert await text(backend, seed=2, **options) != first
    after_the_same_seed = set()
    for _ in range(2):
        assert await text(backend, seed=1, **options) == first
        after_the_same_seed.add(await text(backend, **options))
    assert len(after_the_same_seed) == 2, "without a seed nothing is repeated"


@pytest.mark.parametrize(
    "narrowing",
    [{"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temperature": 1e-9}],
    ids=lambda o: next(iter(o)),
)
async def test_sampling_as_narrow_as_it_gets_is_greedy(backend: HfBackend, narrowing: dict[str, Any]) -> None:
    greedy = await text(backend, temperature=0, max_tokens=8)
    assert await text(backend, **{"temperature": 1.0, "max_tokens": 8, **narrowing}) == greedy


async def test_a_token_may_be_banned(backend: HfBackend) -> None:
    prompt = "What is the capital of France?"
    whole = await text(backend, prompt=prompt, max_tokens=6)
    assert " Paris" in whole
    (paris,) = [token for token, word in vocabulary(backend).items() if word == "ĠParis"]
    banned = await text(backend, prompt=prompt, max_tokens=6, logit_bias={str(paris): -100})
    assert " Paris" not in banned


def vocabulary(backend: HfBackend) -> dict[int, str]:
    tokenizer = orjson.loads((Path(backend._weights) / "tokenizer.json").read_bytes())
    return {number: word for word, number in tokenizer["model"]["vocab"].items()}


async def test_repetition_can_be_punished(backend: HfBackend) -> None:
    options: dict[str, Any] = {"kind": EndpointKind.COMPLETIONS, "prompt": "a a a a a a a a", "max_tokens": 8}
    assert await text(backend, **options) != await text(backend, repetition_penalty=1.9, **options)


async def test_whole_numbers_will_do(backend: HfBackend) -> None:
    options = {"temperature": 1, "top_p": 1, "min_p": 0, "repetition_penalty": 2, "top_k": -1}
    assert await text(backend, max_tokens=3, **options)


async def test_no_end_before_the_least_number_of_tokens(backend: HfBackend) -> None:
    prompt = "What is the capital of France?"
    answer = await ask(backend, prompt=prompt, min_tokens=12, max_tokens=12)
    assert answer.finished.usage.completion_tokens == 12
    assert answer.finished.reason == "length"


async def test_an_end_of_ones_own(backend: HfBackend) -> None:
    (paris,) = [token for token, word in vocabulary(backend).items() if word == "ĠParis"]
    answer = await ask(
        backend, prompt="What is the capital of France?", max_tokens=16, stop_token_ids=[paris], stream=True
    )
    assert answer.texts[0] == "The capital of France is"
    assert answer.finished.reason == "stop"


async def test_characters_of_several_tokens_come_whole(backend: HfBackend) -> None:
    """The model goes on in the manner of what it is shown."""
    prompt = "🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊"
    answer = await ask(
        backend, kind=EndpointKind.COMPLETIONS, prompt=prompt, max_tokens=16, stream=True, ignore_eos=True
    )
    pieces = [event["choices"][0]["text"] for event in answer.events]
    assert sum(character > "\uffff" for character in answer.texts[0]) >= 3
    assert not any("\ufffd" in piece for piece in pieces[:-2]), "only the end may be cut"


async def test_a_stop_string_within_a_token_and_across_two(backend: HfBackend) -> None:
    for stop in ("apital", "l of Fr"):
        answer = await ask(
            backend, prompt="What is the capital of France?", max_tokens=16, stop=[stop], stream=True
        )
        assert answer.texts[0] == "The capital of France is Paris.".partition(stop)[0]
        assert answer.finished.reason == "stop"


async def test_a_prompt_beyond_the_context_is_refused(backend: HfBackend) -> None:
    (opened,) = open_batch(
        backend, [make_request(MODEL, kind=EndpointKind.COMPLETIONS, prompt=[5] * 8192, stream=True)]
    )
    with pytest.raises(ContextLengthExceeded, match="8192"):
        await read(opened, WITHIN_S)
    await freed(opened, WITHIN_S)


@pytest.mark.parametrize(
    "kwargs", [{"tokenize": True}, {"chat_template": "{{ 7 }}"}, {"continue_final_message": True}]
)
async def test_the_template_itself_is_not_the_requests_to_choose(
    backend: HfBackend, kwargs: dict[str, Any]
) -> None:
    (opened,) = open_batch(backend, [make_request(MODEL, chat_template_kwargs=kwargs)])
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        await read(opened, WITHIN_S)
    await freed(opened, WITHIN_S)


async def test_a_cancelled_prompt_is_dropped_within_a_layer(backend: HfBackend) -> None:
    """3,000 tokens take many seconds; a thirtieth of that is a layer."""
    request = make_request(MODEL, kind=EndpointKind.COMPLETIONS, prompt=[5] * 3000, max_tokens=1)
    begun = time.monotonic()
    (opened,) = open_batch(backend, [request])
    await read(opened, WITHIN_S)
    whole_s = time.monotonic() - begun
    (opened,) = open_batch(backend, [request])
    pull = asyncio.ensure_future(_pull(opened))
    life = backend._life
    assert life is not None
    before = await life.work_done()
    async with asyncio.timeout(WITHIN_S):
        while await life.work_done() == before:
            continue
    begun = time.monotonic()
    pull.cancel()
    opened.cancel()
    await freed(opened, WITHIN_S)
    cancelled_s = time.monotonic() - begun
    assert cancelled_s < whole_s / 2
    assert await text(backend, max_tokens=2)


async def _pull(opened: Opened) -> Any:
    return await opened.stream.__anext__()


async def test_a_crash_is_told_and_mended(weights: Path, tmp_path: Path) -> None:
    async with running_backend(weights, tmp_path) as backend:
        ready = asyncio.Event()
        backend._on_change = lambda: ready.set() if backend.status.state is BackendState.READY else None
        (opened,) = open_batch(backend, [make_request(MODEL, stream=True, max_tokens=500, ignore_eos=True)])
        await opened.stream.__anext__()
        (engine,) = [int(pid) for pid in children(process_of(backend).pid)]
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(BackendCrashed):
            await read(opened, WITHIN_S)
        await freed(opened, WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            await ready.wait()
        assert backend.num_restarts == 1
        assert await text(backend, max_tokens=2)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("changes", "content", "words"),
    [
        ({}, None, "no folder with a config.json"),
        ({}, {"model_type": "no such thing"}, "Transformers cannot load the folder"),
        ({"device": "cuda:99"}, {"model_type": "llama"}, "engines.hf.device = 'cuda:99'"),
        ({"device": "abacus"}, {"model_type": "llama"}, "engines.hf.device = 'abacus'"),
    ],
)
async def test_what_cannot_be_loaded_is_told(
    tmp_path: Path, changes: dict[str, Any], content: dict[str, Any] | None, words: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_bytes(orjson.dumps(content))
    backend = make_backend(folder, tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        await backend.start(lambda: None)
    assert words in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert backend.status.state is BackendState.FAILED
    await backend.aclose()


async def test_what_a_request_leaves_open_is_the_models_own(
    backend: HfBackend, weights: Path, tmp_path: Path
) -> None:
    folder = with_defaults(weights, tmp_path / "model", top_k=1, do_sample=True)
    greedy = await text(backend, temperature=0, max_tokens=8)
    async with running_backend(folder, tmp_path) as other:
        assert await text(other, temperature=1.5, max_tokens=8) == greedy
        sampled = {await text(other, temperature=1.5, top_k=-1, max_tokens=8) for _ in range(3)}
        assert len(sampled) > 1


def with_defaults(weights: Path, folder: Path, **defaults: Any) -> Path:
    """The same model with other defaults of its own."""
    folder.mkdir()
    for file in weights.iterdir():
        (folder / file.name).symlink_to(file)
    name = "generation_config.json"
    (folder / name).unlink()
    (folder / name).write_bytes(orjson.dumps({**orjson.loads((weights / name).read_bytes()), **defaults}))
    return folder
