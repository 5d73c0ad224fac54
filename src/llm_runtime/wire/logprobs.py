"""Log probabilities in the legacy completions shape, from the chat shape that some engines send."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_chat_shape(logprobs: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list)


def legacy_logprobs(logprobs: dict[str, Any], offset: int) -> dict[str, Any]:
    """`{"content": [{token, logprob, top_logprobs}]}` as tokens, token_logprobs, top_logprobs and
    text_offset. offset: characters of the choice's text before these tokens."""
    tokens: list[str] = []
    chosen: list[float | None] = []
    top: list[dict[str, float]] = []
    offsets: list[int] = []
    for entry in logprobs["content"]:
        token = entry.get("token") or ""
        tokens.append(token)
        chosen.append(entry.get("logprob"))
        top.append({other["token"]: other["logprob"] for other in entry.get("top_logprobs") or ()})
        offsets.append(offset)
        offset += len(token)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}


def without_alternatives(logprobs: Any) -> bool:
    """Empties every `top_logprobs`; whether there was any. For engines that cannot give the chosen
    token's probability alone: a client that asked for no alternatives gets none."""
    if not is_chat_shape(logprobs):
        return False
    for entry in logprobs["content"]:
        if isinstance(entry, dict):
            entry["top_logprobs"] = []
    return True
