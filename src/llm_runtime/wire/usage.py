"""Token counts as engines report them: read, summed over choices, and written for the client."""

from __future__ import annotations

from typing import Any

from llm_runtime.core.outcome import Usage


def read_usage(usage: Any) -> Usage | None:
    """A `usage` object as counts; None if it is not one. Total is never read: it is the sum."""
    if not isinstance(usage, dict):
        return None
    prompt = count_of(usage.get("prompt_tokens"))
    completion = count_of(usage.get("completion_tokens") or 0)
    if prompt is None or completion is None:
        return None
    details = usage.get("prompt_tokens_details")
    if not isinstance(details, dict):
        return Usage(prompt, completion)
    return Usage(prompt, completion, count_of(details.get("cached_tokens")) or 0)


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class UsageMeter:
    """Adds up one request's usage. Owned by that request's stream reader.

    per_choice: every choice reports its own usage (llama.cpp): completion tokens add up, prompt
        tokens count once for each prompt. Otherwise each report replaces the one before it.
    choices_per_prompt: choices i*k ... i*k+k-1 answer prompt i.
    """

    __slots__ = ("_choices_per_prompt", "_completion_tokens", "_last", "_per_choice", "_prompts")

    def __init__(self, *, per_choice: bool = False, choices_per_prompt: int = 1) -> None:
        self._per_choice = per_choice
        self._choices_per_prompt = max(1, choices_per_prompt)
        self._completion_tokens = 0
        self._prompts: dict[int, Usage] = {}
        self._last: tuple[Usage, dict[str, Any]] | None = None

    def add(self, report: Any, choice_index: int | None) -> None:
        """Notes a `usage` member. choice_index: of the event's choice, None without choices."""
        usage = read_usage(report)
        if usage is None:
            return
        if self._per_choice:
            self._completion_tokens += usage.completion_tokens
            self._prompts[(choice_index or 0) // self._choices_per_prompt] = usage
        else:
            self._last = (usage, report)

    def total(self) -> Usage | None:
        """What has been reported so far; None if nothing was."""
        if self._last is not None:
            return self._last[0]
        if not self._prompts:
            return None
        return Usage(
            sum(usage.prompt_tokens for usage in self._prompts.values()),
            self._completion_tokens,
            sum(usage.cached_tokens for usage in self._prompts.values()),
        )

    def written(self, fallback: Usage) -> dict[str, Any]:
        """The `usage` object for the client, with the engine's details where there is one report."""
        total = self.total()
        if self._last is None or total is None:
            return usage_object(total or fallback)
        counts = usage_object(total)
        del counts["prompt_tokens_details"]  # the engine's own says more
        return {**self._last[1], **counts}


def count_of(value: Any) -> int | None:
    """A count as JSON may hold one; None for anything else."""
    return value if type(value) is int and value >= 0 else None
