"""How the mock engine reads a request: its prompts, the answers they get, and what it must refuse.

Sampling parameters (temperature, top_p, penalties, ...) are accepted and change nothing, since nothing
is sampled. What would have to show in the answer and cannot is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from llm_runtime.core.errors import ContextLengthExceeded, InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.mock_text import Answer

CHARACTERS_PER_TOKEN = 4
MAX_STOP_CHARACTERS = 256
_SAMPLE_CHARACTERS = 512  # of each end of a text; hashing all of a huge prompt would block the loop


@dataclass(frozen=True, slots=True)
class Prompt:
    """num_tokens: a token is four characters, rounded up, or one of the client's own token ids.

    key: 64 bits that decide the answer.
    """

    num_tokens: int
    key: int


def read_prompts(request: RuntimeRequest) -> list[Prompt]:
    """One prompt of a chat, or each of a completion's. Never empty."""
    body = request.body
    seed = body.get("seed")
    if request.kind is EndpointKind.CHAT:
        return [_prompt([_message_text(message) for message in body["messages"]], seed)]
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [_prompt([prompt], seed)]
    if isinstance(prompt[0], int):
        return [_token_prompt(prompt, seed)]
    if isinstance(prompt[0], str):
        return [_prompt([text], seed) for text in prompt]
    return [_token_prompt(tokens, seed) for tokens in prompt]


def make_answers(request: RuntimeRequest, prompts: list[Prompt], context_tokens: int) -> list[Answer]:
    """All choices in the order of their index: those of the first prompt, then the second's, ..."""
    body = request.body
    stop = body.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    endless = bool(body.get("ignore_eos"))
    return [
        Answer(
            prompt.key,
            variant,
            max(1, min(request.max_tokens, context_tokens - prompt.num_tokens)),
            stops=stops,
            endless=endless,
        )
        for prompt in prompts
        for variant in range(body.get("n") or 1)
    ]


def check_request(request: RuntimeRequest, context_tokens: int) -> None:
    """Raises InvalidRequest for the first field that the mock cannot honour."""
    if request.kind not in (EndpointKind.CHAT, EndpointKind.COMPLETIONS):
        raise InvalidRequest("The mock engine serves chat and text completions only.", param="model")
    body = request.body
    for field, asks_for_it in _REFUSED.items():
        value = body.get(field)
        if value is not None and asks_for_it(value):
            raise _unsupported(field)
    if (body.get("best_of") or 1) > (body.get("n") or 1):
        raise _unsupported("best_of")
    stop = body.get("stop") or ()
    if any(len(text) > MAX_STOP_CHARACTERS for text in ([stop] if isinstance(stop, str) else stop)):
        message = f"The mock engine takes stop strings of up to {MAX_STOP_CHARACTERS} characters."
        raise InvalidRequest(message, param="stop", reason="unsupported_value")
    field = "prompt"
    if request.kind is EndpointKind.CHAT:
        field = "messages"
        _check_messages(body["messages"])
    longest = max(prompt.num_tokens for prompt in read_prompts(request))
    if longest >= context_tokens:
        raise ContextLengthExceeded(
            f"The prompt has {longest} tokens; with at least one for the answer that exceeds the "
            f"context of {context_tokens}.",
            param=field,
        )


def _given(value: Any) -> bool:
    return True


def _not_text(value: Any) -> bool:
    return not isinstance(value, Mapping) or value.get("type") != "text"


def _demands_a_call(value: Any) -> bool:
    return value not in ("none", "auto")


_REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "logprobs": lambda value: value is not False,  # completions: 0 asks for the chosen token's
    "top_logprobs": bool,
    "tools": bool,
    "functions": bool,
    "tool_choice": _demands_a_call,
    "function_call": _demands_a_call,
    "response_format": _not_text,
    "modalities": lambda value: value != ["text"],
    "audio": _given,
    "web_search_options": _given,
    "echo": bool,
    "suffix": bool,
    "logit_bias": bool,
    "min_tokens": bool,
    "stop_token_ids": bool,
    # What constrains an answer's form, in the words of other engines.
    **dict.fromkeys(
        (
            "grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
            "guided_grammar",
        ),
        _given,
    ),
}  # fmt: skip


def _unsupported(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"The mock engine does not support '{field}' as given.", param=field, reason="unsupported_parameter"
    )


def _check_messages(messages: list[Any]) -> None:
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for position, part in enumerate(content):
            if part.get("type") != "text":
                param = f"messages[{index}].content[{position}]"
                raise InvalidRequest(
                    f"The mock engine reads text only; '{param}' is something else.",
                    param=param,
                    reason="unsupported_content_part",
                )


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _prompt(texts: list[str], seed: int | None) -> Prompt:
    digest = blake2b(digest_size=8, key=_seed_key(seed))
    num_characters = 0
    for text in texts:
        num_characters += len(text)
        digest.update(b"%d:" % len(text))
        digest.update(text[:_SAMPLE_CHARACTERS].encode(errors="surrogatepass"))
        digest.update(text[-_SAMPLE_CHARACTERS:].encode(errors="surrogatepass"))
    return Prompt(
        max(1, -(-num_characters // CHARACTERS_PER_TOKEN)), int.from_bytes(digest.digest(), "little")
    )


def _token_prompt(tokens: list[int], seed: int | None) -> Prompt:
    digest = blake2b(digest_size=8, key=_seed_key(seed))
    digest.update(b"%d:" % len(tokens))
    digest.update(repr(tokens[:_SAMPLE_CHARACTERS]).encode())
    digest.update(repr(tokens[-_SAMPLE_CHARACTERS:]).encode())
    return Prompt(len(tokens), int.from_bytes(digest.digest(), "little"))


def _seed_key(seed: int | None) -> bytes:
    return b"" if seed is None else str(seed).encode()
