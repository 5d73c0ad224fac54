"""One model under Transformers: prompts to token ids, and `generate()` a token at a time.

The only module that imports torch and transformers. Everything in it runs in one thread, the engine
program's worker: torch keeps a team of computing threads per calling thread.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from llm_runtime.core.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from llm_runtime.engines.hf.answering import Generated, Watch
from llm_runtime.engines.hf.fields import GREEDY_BELOW, Sampling
from llm_runtime.engines.hf.text import Detokenizer
from llm_runtime.engines.stop_filter import StopFilter

WARM_UP_TOKENS = 2
SEEDS = 1 << 63
UNLIMITED = 1 << 31


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """dtype: auto (as the weights say), bfloat16, float16 or float32. device: auto, cpu, cuda, ...

    num_threads: None leaves it to torch.
    """

    path: Path
    dtype: str = "auto"
    device: str = "auto"
    num_threads: int | None = None


class Generator:
    """`answering.Model`. Owned by the engine program's worker thread, which alone may call it."""

    def __init__(self, options: LoadOptions) -> None:
        """Loads the model and generates a little, so that the first request pays for nothing.

        Raises ConfigError where the folder cannot be served.
        """
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        self._device = _device(options.device)
        self._tokenizer, self._model = _load(options, self._device)
        config = self._model.config.get_text_config()
        self.context_tokens: int | None = getattr(config, "max_position_embeddings", None)
        self._vocabulary = config.vocab_size
        self._layers = _layers(self._model, getattr(config, "num_hidden_layers", 0))
        self._defaults: Mapping[str, Any] = self._model.generation_config.to_diff_dict()
        self._eos = _token_ids(self._defaults.get("eos_token_id")) or _token_ids(self._tokenizer.eos_token_id)
        # Else the model's values would fill whatever a request's configuration leaves at None.
        self._model.generation_config = transformers.GenerationConfig()
        self.probe()

    # ---- prompts

    def chat_prompt(self, messages: list[dict[str, Any]], template: Mapping[str, Any]) -> list[int]:
        """Token ids of a conversation. template: the request's `chat_template_kwargs`."""
        if not self._tokenizer.chat_template:
            raise InvalidRequest("This model has no chat template.", param="messages")
        taken = inspect.signature(self._tokenizer.apply_chat_template).parameters
        for name in template:
            if name in taken:
                param = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"'{param}' is not the request's to set.", param=param)
        try:
            text = self._tokenizer.apply_chat_template(
                [_with_plain_text(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **template,
            )
        except Exception as error:  # a template is a program of the model's maker: it raises what it likes
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise InvalidRequest(
                f"The model's chat template does not take this conversation ({cause}).", param="messages"
            ) from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def text_prompt(self, prompt: str | list[int]) -> list[int]:
        """Token ids of one prompt of a legacy completion."""
        if isinstance(prompt, str):
            ids: list[int] = self._tokenizer(prompt)["input_ids"]
            return ids
        if any(token >= self._vocabulary for token in prompt):
            raise InvalidRequest(f"'prompt' has ids beyond the {self._vocabulary} there are.", param="prompt")
        return list(prompt)

    def max_tokens(self, prompt: list[int], sampling: Sampling) -> int:
        """The most that can be generated after this prompt, at least 1. Raises InvalidRequest."""
        if not prompt:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if self.context_tokens is None:
            return sampling.max_tokens or UNLIMITED
        room = self.context_tokens - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens; with at least one for the answer that exceeds the "
                f"model's context length of {self.context_tokens}."
            )
        return min(room, sampling.max_tokens or room)

    # ---- generation

    def generate(self, prompt: list[int], sampling: Sampling, watch: Watch) -> Generated:
        """One sequence, to its end. Raises what `max_tokens` raises, and what the watch does."""
        max_tokens = self.max_tokens(prompt, sampling)
        answer = _Answer(
            Detokenizer(self._decode, prompt),
            StopFilter(sampling.stop),
            frozenset(() if sampling.ignore_eos else self._eos) | frozenset(sampling.stop_token_ids),
            watch,
        )
        config = self._configuration(sampling, max_tokens, sorted(answer.end_tokens))
        ids = torch.tensor([prompt], device=self._device)
        # Without a seed of its own a request must not go on where a seeded one left off.
        torch.manual_seed(secrets.randbits(63) if sampling.seed is None else sampling.seed % SEEDS)
        with self._watched_layers(watch.on_work) as unwatch:
            answer.on_first_token = unwatch
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=transformers.StoppingCriteriaList([answer]),
            )
        answer.close()
        return Generated("stop" if answer.stopped else "length", answer.num_tokens)

    def _configuration(self, sampling: Sampling, max_tokens: int, end_tokens: list[int]) -> Any:
        values: dict[str, Any] = {
            "max_new_tokens": max_tokens,
            "eos_token_id": end_tokens or None,
            "pad_token_id": end_tokens[0] if end_tokens else 0,
            "use_cache": True,
            "repetition_penalty": float(self._chosen(sampling.repetition_penalty, "repetition_penalty", 1.0)),
        }
        if sampling.min_tokens and end_tokens:
            values["min_new_tokens"] = min(sampling.min_tokens, max_tokens)
        if sampling.logit_bias:
            biased = {token: bias for token, bias in sampling.logit_bias.items() if token < self._vocabulary}
            values["sequence_bias"] = [[[token], bias] for token, bias in biased.items()] or None
        temperature = self._chosen(sampling.temperature, "temperature", 1.0)
        if temperature < GREEDY_BELOW:
            return transformers.GenerationConfig(do_sample=False, **values)
        top_k = self._chosen(sampling.top_k, "top_k", 0)
        min_p = self._chosen(sampling.min_p, "min_p", None)
        return transformers.GenerationConfig(
            do_sample=True,
            temperature=float(temperature),  # integers are refused
            top_p=float(self._chosen(sampling.top_p, "top_p", 1.0)),
            top_k=max(top_k, 0),
            min_p=None if min_p is None else float(min_p),
            **values,
        )

    def _chosen(self, asked: Any, name: str, default: Any) -> Any:
        """What the request says, else the model's own configuration, else what changes nothing."""
        if asked is not None:
            return asked
        own = self._defaults.get(name)
        return default if own is None else own

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def probe(self) -> None:
        """Generates a little; raises whatever is wrong with the engine."""
        nothing = Watch(on_text=lambda text: None, on_work=lambda: None)
        start = self._eos[:1] or [0]
        self.generate(start, Sampling(WARM_UP_TOKENS, temperature=0.0, ignore_eos=True), nothing)

    @contextlib.contextmanager
    def _watched_layers(self, on_work: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """A long prompt is one step to `generate`, but many layers; what a hook raises leaves nothing
        behind. Gives what takes the hooks away again."""
        hooks = [layer.register_forward_pre_hook(lambda *_: on_work()) for layer in self._layers]

        def unwatch() -> None:
            while hooks:
                hooks.pop().remove()

        try:
            yield unwatch
        finally:
            unwatch()


class _Answer(transformers.StoppingCriteria):  # type: ignore[misc]
    """Called by `generate` after each token, with all ids so far: unlike a streamer it may also end it."""

    def __init__(
        self, detokenizer: Detokenizer, stops: StopFilter, end_tokens: frozenset[int], watch: Watch
    ) -> None:
        self.end_tokens = end_tokens
        self.num_tokens = 0
        self.stopped = False
        self.on_first_token: Callable[[], None] | None = None
        self._detokenizer = detokenizer
        self._stops = stops
        self._watch = watch
        self._was_cut = False

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if not self.stopped:  # some devices are told one token late
            self.num_tokens += 1
            if self.on_first_token is not None:
                self.on_first_token()
                self.on_first_token = None
            self._watch.on_work()
            self._take(int(input_ids[0, -1]))
        return torch.full((1,), self.stopped, device=input_ids.device, dtype=torch.bool)

    def close(self) -> None:
        """Shows what was held back: half of a character, half of a stop string."""
        if self._was_cut:
            return
        self._show(self._detokenizer.flush())
        if rest := self._stops.flush():
            self._watch.on_text(rest)

    def _take(self, token: int) -> None:
        if token in self.end_tokens:
            self.stopped = True
        else:
            self._show(self._detokenizer.feed(token))

    def _show(self, piece: str) -> None:
        if piece:
            text, self._was_cut = self._stops.feed(piece)
            self.stopped = self.stopped or self._was_cut
            if text:
                self._watch.on_text(text)


def _load(options: LoadOptions, device: Any) -> tuple[Any, Any]:
    common = {"local_files_only": True, "trust_remote_code": False}
    dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.path, **common)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.path, dtype=dtype, use_safetensors=True, **common
        )
    except (OSError, ValueError, KeyError) as error:  # what its loaders raise for a folder that is no model
        raise ConfigError("Transformers cannot load the folder that model.path names") from error
    return tokenizer, model.to(device).eval()


def _device(wanted: str) -> Any:
    has_cuda = torch.cuda.is_available()
    if wanted == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"engines.hf.device = {wanted!r} is no device; use auto, cpu or cuda") from error
    if device.type == "cuda" and not has_cuda:
        raise ConfigError(f"engines.hf.device = {wanted!r}: torch sees no GPU here; use auto or cpu")
    return device


def _layers(model: Any, num_layers: int) -> list[Any]:
    """The decoder's layers, or the whole model where none can be told."""
    lists = [list(part) for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part)]
    fitting = [layers for layers in lists if len(layers) == num_layers]
    return (fitting or [max(lists, key=len, default=[model])])[0]


def _token_ids(ids: Any) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _with_plain_text(message: dict[str, Any]) -> dict[str, Any]:
    """Most templates know content as one text only: the parts of it, a line each, as other engines do."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}
