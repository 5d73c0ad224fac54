"""Driving a backend in tests the way the dispatcher and a response writer do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import Backend, EngineStream, Finished, Run, Work

CREATED = 1_700_000_000
_serial = itertools.count()


@dataclass
class Opened:
    """One request in an engine, with a count of how often its lease was freed."""

    request: RuntimeRequest
    lease: Lease
    run: Run
    freed: list[Lease]
    freed_event: asyncio.Event
    stream: EngineStream

    def cancel(self) -> None:
        self.run.cancel(self.request.id)


@dataclass
class Answer:
    """A whole answer, taken apart. texts: by choice index."""

    raw: bytes
    finished: Finished
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None


def make_request(
    engine_model: str,
    *,
    kind: EndpointKind = EndpointKind.CHAT,
    prompt: Any = "Say a few words.",
    **body: Any,
) -> RuntimeRequest:
    """A request as the API builds it. `stream`, `include_usage` and `max_tokens` may be in `body`."""
    stream = body.pop("stream", False)
    include_usage = body.pop("include_usage", False)
    max_tokens = body.setdefault("max_tokens", 8)
    body.setdefault("temperature", 0)
    content = {"prompt": prompt}
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    if kind is EndpointKind.CHAT:
        content, num_prompts = {"messages": [{"role": "user", "content": prompt}]}, 1
    return RuntimeRequest(
        id=f"req-{next(_serial)}",
        model=engine_model,
        kind=kind,
        body={"model": engine_model, **content, **body},
        arrived_at=0.0,
        created=CREATED,
        stream=stream,
        include_usage=include_usage,
        num_slots=num_prompts * body.get("n", 1),
        num_prompt_tokens=10,
        max_tokens=max_tokens,
    )


def open_batch(backend: Backend, requests: Sequence[RuntimeRequest]) -> list[Opened]:
    """Hands requests to the engine as the dispatcher does: one `open`, then the streams."""
    frees: dict[str, tuple[list[Lease], asyncio.Event]] = {}

    def on_free(lease: Lease) -> None:
        freed, event = frees[lease.request_id]
        freed.append(lease)
        event.set()

    works = []
    for request in requests:
        backend.check(request)
        frees[request.id] = ([], asyncio.Event())
        works.append(Work(request, Lease(request.id, "r0", request.num_slots, 0.0, on_free)))
    run = backend.open(works)
    return [
        Opened(work.request, work.lease, run, *frees[work.request.id], run.stream(work.request.id))
        for work in works
    ]


async def read(opened: Opened, within_s: float) -> Answer:
    """Pulls to the end the way a response writer does: no pull after `finished` is known."""
    raw = b""
    async with asyncio.timeout(within_s):
        while opened.stream.finished is None:
            item = await opened.stream.__anext__()
            assert isinstance(item, bytes)
            raw += item
    return parse(opened.request, raw, opened.stream.finished)


def parse(request: RuntimeRequest, raw: bytes, finished: Finished) -> Answer:
    answer = Answer(raw, finished)
    if not request.stream:
        answer.events = [orjson.loads(raw)]
    else:
        assert raw.endswith(b"\n\n")
        blocks = raw.removesuffix(b"\n\n").split(b"\n\n")
        answer.done = blocks[-1] == b"data: [DONE]"
        blocks = blocks[:-1] if answer.done else blocks
        answer.events = [orjson.loads(block.removeprefix(b"data: ")) for block in blocks]
    for event in answer.events:
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            index = choice["index"]
            message = choice.get("message") or choice.get("delta") or choice
            text = message.get("content") or message.get("text") or ""
            answer.texts[index] = answer.texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                assert index not in answer.reasons, "a choice finishes once"
                answer.reasons[index] = choice["finish_reason"]
    return answer


async def freed(opened: Opened, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        await opened.freed_event.wait()
    assert opened.lease.state is LeaseState.FREE
