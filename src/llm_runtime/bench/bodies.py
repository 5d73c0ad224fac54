"""Requests as bytes: prompts, caps, priorities and tenants in the dialect of the target's endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.bench.config import PATHS, Target
from llm_runtime.bench.prompts import PromptWriter
from llm_runtime.bench.workload import Session

Message = dict[str, str]


class BodyWriter:
    """Owned by one run. model: as the target names it."""

    def __init__(self, target: Target, model: str, prompts: PromptWriter) -> None:
        self._target = target
        self._prompts = prompts
        fixed: dict[str, Any] = {"model": model}
        if target.temperature is not None:
            fixed["temperature"] = target.temperature
        if target.stream:
            fixed |= {"stream": True, "stream_options": {"include_usage": True}}
        if target.ignore_eos:
            fixed["ignore_eos"] = True
        self._fixed = fixed

    def user_text(self, session: Session, turn: int) -> str:
        """What the user says at this turn, the shared beginning included."""
        asked = session.turns[turn]
        key = f"{session.number}:{turn}"
        if asked.block_ids:
            return self._blocks(asked.block_ids, asked.block_tokens, asked.input_tokens, key)
        text = self._prompts.unique(key, asked.input_tokens)
        if asked.prefix is None:
            return text
        return f"{self._prompts.prefix(asked.prefix, session.traffic.prefix.tokens)} {text}"

    def body(self, session: Session, turn: int, history: list[Message]) -> bytes:
        """history: the conversation so far, the new user message included."""
        members: dict[str, Any] = {**self._fixed, "max_tokens": session.turns[turn].output_tokens}
        if self._target.endpoint == "chat":
            members["messages"] = history
        else:
            members["prompt"] = "\n".join(message["content"] for message in history)
        if session.traffic.priority is not None:
            members["priority"] = session.traffic.priority
        return orjson.dumps({**members, **self._target.extra_body})

    def headers(self, session: Session) -> Mapping[str, str]:
        traffic, target = session.traffic, self._target
        headers = dict(target.headers)
        if key := traffic.api_key or target.api_key:
            headers["authorization"] = f"Bearer {key}"
        if traffic.tenant is not None:
            headers["x-tenant-id"] = traffic.tenant
        if traffic.patience_s is not None and target.stream:
            headers["x-slo-ttft-ms"] = f"{1e3 * traffic.patience_s:.0f}"
        return headers

    @property
    def path(self) -> str:
        return PATHS[self._target.endpoint]

    def _blocks(self, ids: tuple[int, ...], block_tokens: int, tokens: int, key: str) -> str:
        # The last block of a trace may be partial; what is beyond the blocks belongs to this request.
        parts, left = [], tokens
        for block_id in ids:
            if left <= 0:
                break
            parts.append(self._prompts.block(block_id, min(block_tokens, left)))
            left -= block_tokens
        if left > 0:
            parts.append(self._prompts.unique(key, left))
        return " ".join(parts)
