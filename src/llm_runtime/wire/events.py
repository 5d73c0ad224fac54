"""What one event of an engine's stream means, and what it must look like for a client.

`ChunkNormaliser` is the one place that knows how engines deviate: changing ids and times, sloppy
indices, empty finish reasons, missing roles, usage in odd places, progress reports. The relay and
the assembler both read through it, so a stream and a plain reply agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    LLMRuntimeError,
    UpstreamRefused,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.dialects.chat import delta_has_token
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.logprobs import is_chat_shape, legacy_logprobs, without_alternatives
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens: in total, of these cached, of these processed so far (cached ones included)."""

    total: int
    cached: int
    processed: int


class ChunkNormaliser:
    """The state of one stream's meaning. Owned by the relay or assembler of one request.

    `accept` changes events in place. Everything else is read by the owner.
    """

    __slots__ = (
        "_is_chat",
        "_offsets",
        "_options",
        "_roles",
        "created",
        "finished",
        "has_token",
        "id",
        "meter",
        "num_token_events",
        "progress",
    )

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._is_chat = options.is_chat
        self._roles: set[int] = set()
        self._offsets: dict[int, int] = {}
        self.id: str | None = None if options.keep_engine_id else options.id
        self.created: int | None = None
        self.finished: dict[int, str] = {}
        self.meter = UsageMeter(
            per_choice=options.usage_per_choice,
            choices_per_prompt=options.num_choices // max(1, options.num_prompts),
        )
        self.progress: Progress | None = None
        self.has_token = False
        """Of the event accepted last."""
        self.num_token_events = 0

    @property
    def has_begun(self) -> bool:
        return self.created is not None

    def begin(self, id: str, created: int) -> None:
        """What `accept` does for a first event of one choice that says these and the role, and no more."""
        self.id, self.created = id, created
        self._roles.add(0)
        self.has_token = False

    def finish(self, reason: str) -> None:
        """The only choice has ended, with an event that needed no change."""
        self.finished[0] = reason

    @property
    def complete(self) -> bool:
        return len(self.finished) >= self._options.num_choices

    def require_complete(self) -> None:
        """Raises BackendError unless every choice has finished: a cut answer is never passed as whole."""
        if not self.complete:
            raise BackendError(
                "The engine's answer ended before it was complete.", reason="backend_stream_truncated"
            )

    def accept(self, event: dict[str, Any]) -> bool | None:
        """Takes in one parsed event and brings it into shape.

        Returns None for an event that clients do not see, else whether it had to be changed.
        Raises the exception of an `error` event, and BackendProtocolError for nonsense.
        """
        self.has_token = False
        choices = event.get("choices")
        if event.get("error") or (event.get("object") == "error" and not choices):
            raise self._failure(event)
        if choices is not None and not isinstance(choices, list):
            raise _nonsense("an event whose choices are no list")
        if event.get("usage"):
            self.meter.add(event["usage"], _index_of(choices))
        if event.get("prompt_progress"):
            self._note_progress(event["prompt_progress"])
            if not any(self._says_something(choice) for choice in choices or ()):
                return None
        if not choices:
            return None
        changed = self._shape_choices(event, choices)
        if not event["choices"]:
            return None
        if self.has_token:
            self.num_token_events += 1
        return self._shape_envelope(event) or changed

    def spent(self) -> Usage:
        """Usage so far: the engine's where it reported all of it, else counted, marked estimated."""
        total = self.meter.total()
        if total is not None and self.complete:
            return total
        if total is None:
            progress, options = self.progress, self._options
            prompt = progress.total * options.num_prompts if progress else options.prompt_tokens_estimate
            total = Usage(prompt, 0, progress.cached if progress else 0)
        completion = max(total.completion_tokens, self.num_token_events)
        return Usage(total.prompt_tokens, completion, total.cached_tokens, estimated=True)

    def usage_event(self) -> dict[str, Any]:
        """The event that reports usage, as a client expects it."""
        options = self._options
        return {
            "id": self.id or options.id,
            "object": options.chunk_object,
            "created": options.created if self.created is None else self.created,
            "model": options.model,
            "choices": [],
            "usage": self.meter.written(fallback=self.spent()),
        }

    def _failure(self, event: dict[str, Any]) -> LLMRuntimeError:
        error = upstream_error(event)
        if self.num_token_events and isinstance(error, InvalidRequest | BackendUnavailable | UpstreamRefused):
            # Half an answer is out: no refusal any more, and trying elsewhere would repeat it.
            return BackendError(error.message)
        return error

    def _note_progress(self, report: Any) -> None:
        if not isinstance(report, dict):
            return
        counts = [report.get(key) for key in ("total", "cache", "processed")]
        total, cached, processed = (count if isinstance(count, int) else 0 for count in counts)
        self.progress = Progress(total, cached, processed)

    def _shape_envelope(self, event: dict[str, Any]) -> bool:
        options = self._options
        if self.id is None:
            engine_id = event.get("id")
            self.id = engine_id if isinstance(engine_id, str) and engine_id else options.id
        if self.created is None:
            created = event.get("created")
            is_time = isinstance(created, int) and not isinstance(created, bool) and created > 0
            self.created = created if is_time else options.created
        changed = False
        if event.get("id") != self.id:
            event["id"] = self.id
            changed = True
        if event.get("object") != options.chunk_object:
            event["object"] = options.chunk_object
            changed = True
        if event.get("created") != self.created:
            event["created"] = self.created
            changed = True
        if event.get("model") != options.model:
            event["model"] = options.model
            changed = True
        if options.strip_members:
            for key in event.keys() & options.strip_members:
                del event[key]
                changed = True
        if "error" in event:
            del event["error"]
            changed = True
        return self._shape_usage(event) or changed

    def _shape_usage(self, event: dict[str, Any]) -> bool:
        if self._options.include_usage:
            if "usage" in event and event["usage"] is None:
                return False
            event["usage"] = None
            return True
        if "usage" not in event:
            return False
        del event["usage"]
        return True

    def _shape_choices(self, event: dict[str, Any], choices: list[Any]) -> bool:
        kept: list[dict[str, Any]] = []
        changed = False
        for choice in choices:
            if not isinstance(choice, dict):
                raise _nonsense("a choice that is no object")
            changed |= self._shape_index(choice)
            index = choice["index"]
            has_token = self._has_token(choice)
            if index in self.finished:
                if has_token:
                    raise _nonsense("text after the end of an answer")
                continue
            changed |= self._shape_chat(choice, index) if self._is_chat else self._shape_text(choice, index)
            changed |= self._shape_finish(choice, index)
            self.has_token |= has_token
            kept.append(choice)
        if len(kept) != len(choices):
            event["choices"] = kept
            changed = True
        return changed

    def _shape_index(self, choice: dict[str, Any]) -> bool:
        index = choice.get("index")
        num_choices = self._options.num_choices
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < num_choices:
            return False
        if num_choices > 1:
            raise _nonsense("a choice that nobody asked for")
        choice["index"] = 0  # some engines count tokens here
        return True

    def _says_something(self, choice: Any) -> bool:
        return isinstance(choice, dict) and bool(choice.get("finish_reason") or self._has_token(choice))

    def _has_token(self, choice: dict[str, Any]) -> bool:
        if not self._is_chat:
            return bool(choice.get("text"))
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        return True if delta.get("content") else delta_has_token(delta)

    def _shape_chat(self, choice: dict[str, Any], index: int) -> bool:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
        changed = self._drop_alternatives(choice)
        changed = _shape_logprobs(choice) or changed
        if index in self._roles:
            # Clients concatenate the strings of deltas, so a role said twice is damage.
            if "role" not in delta:
                return changed
            del delta["role"]
            return True
        self._roles.add(index)
        if delta.get("role") == "assistant":
            return changed
        delta.pop("role", None)
        choice["delta"] = {"role": "assistant", **delta}
        return True

    def _shape_text(self, choice: dict[str, Any], index: int) -> bool:
        changed = self._drop_alternatives(choice)
        if not isinstance(choice.get("text"), str):
            choice["text"] = ""
            changed = True
        if "logprobs" not in choice:
            choice["logprobs"] = None
            changed = True
        elif self._options.translate_logprobs and is_chat_shape(choice["logprobs"]):
            offset = self._offsets.get(index, 0)
            self._offsets[index] = offset + len(choice["text"])
            choice["logprobs"] = legacy_logprobs(choice["logprobs"], offset)
            changed = True
        return changed

    def _drop_alternatives(self, choice: dict[str, Any]) -> bool:
        return self._options.drop_alternatives and without_alternatives(choice.get("logprobs"))

    def _shape_finish(self, choice: dict[str, Any], index: int) -> bool:
        said = choice.get("finish_reason")
        if said is None and "finish_reason" in choice:
            return False
        if said is None or said == "":
            choice["finish_reason"] = None
            return True
        reason = finish_reason(said, self._options)
        choice["finish_reason"] = self.finished[index] = reason
        return bool(reason != said)


def finish_reason(said: Any, options: RelayOptions) -> str:
    """An engine's finish reason in OpenAI's words. Raises BackendError for any it cannot be."""
    if isinstance(said, str):
        if said in options.finish_reasons:
            return said
        alias = options.finish_aliases.get(said.lower())
        if alias in options.finish_reasons:
            return alias
    raise BackendError("The engine broke the answer off.", reason="backend_aborted")


def _shape_logprobs(choice: dict[str, Any]) -> bool:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict) or "refusal" in logprobs:
        return False
    logprobs["refusal"] = None
    return True


def _index_of(choices: list[Any] | None) -> int | None:
    if not choices or not isinstance(choices[0], dict):
        return None
    index = choices[0].get("index")
    return index if isinstance(index, int) else None


def _nonsense(what: str) -> BackendProtocolError:
    return BackendProtocolError(f"The engine sent {what}.")
