"""Weights and arithmetic with fewer bits on vLLM: how much faster, and how near the answers stay.

float32 is the reference; bfloat16 is what is served by default, FP8 is made by vLLM as it loads, AWQ is
four bits with its own kernels, from a checkpoint or made by rounding (`bench.awq_weights`: no samples
seen, so AWQ's own method should do better). Quality is how likely each finds the same eight texts, how
often it would put the same token, and whether its greedy answers are the reference's (`bench.likeness`).

Limits. Eight texts and sixteen questions tell a broken kernel or a coarse format from a sound one; they are
no test of a model's abilities. The builtin model had four bits before it was made wide again, which
flatters formats with few. Two runs of one format may differ in a token where two are almost equally likely.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llm_runtime.bench import awq_weights
from llm_runtime.bench.likeness import Scored, likeness
from llm_runtime.bench.plain_call import post_json
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.vllm_host import MODEL, Engine, Host, Served, command, local_folder
from llm_runtime.bench.vllm_load import LATENCIES, ClosedLoad, Loaded, loaded, with_each
from llm_runtime.core.errors import ConfigError

NAME = "vllm-precision"
REFERENCE = "float32"
SHOWN = ("output_throughput", *LATENCIES, "gpu_utilisation", "failed")
LIKENESS = ("mean_logprob", "perplexity_ratio", "same_likeliest", "same_answers", "same_beginning")
AWQ_GROUP = 64
AWQ_TIMEOUT_S = 900.0
ANSWER_TOKENS = 32

TEXTS = (
    "The harbour wakes before the town does. Long before the first bus, men in heavy boots carry "
    "crates of ice to the boats, and the gulls gather on the roofs because they know what the ice is "
    "for. By seven o'clock the boats are small dots on the water, and the only sound left is the rope "
    "that knocks against the mast.",
    "To bake a simple loaf of bread you need flour, water, salt and yeast. Mix them in a bowl until no "
    "dry flour is left, cover the bowl and wait for an hour. Then fold the dough over itself a few "
    "times, let it rise again, and bake it in a hot oven for about forty minutes, until the crust is "
    "brown.",
    "A queue forms whenever people arrive faster than they can be served. If the shop has one clerk "
    "and each customer takes two minutes, then at most thirty customers can be served in an hour. When "
    "more than thirty come, the queue grows, and it keeps growing until fewer of them come or a second "
    "clerk opens.",
    "The moon has no light of its own. What we see is the light of the sun, thrown back by grey dust "
    "and rock. Because the moon goes round the earth once in about a month, the side that is lit turns "
    "slowly towards us and away again, and so we see a thin crescent, then a half, then the whole disc.",
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return "
    "total / len(values)\n\n\ndef variance(values):\n    middle = mean(values)\n    squares = [(value "
    "- middle) ** 2 for value in values]\n    return mean(squares)\n",
    "In the spring of that year the council decided to build a bridge. Nobody had asked for one, but "
    "the ferry had sunk twice, and the baker on the far side threatened to move. It took four summers. "
    "On the day it opened the whole town walked across it, and in the evening the whole town walked "
    "back.",
    "Water boils at a lower temperature on a mountain than at the sea, because the air above it is "
    "thinner and presses on it with less force. This is why potatoes take longer to cook in a hut near "
    "the summit: the water boils, but it is not as hot as it would be in a kitchen in the valley.",
    "Dear Anna, thank you for your letter. We arrived on Tuesday after a long journey by train. The "
    "flat is small but bright, and from the kitchen one can see the river. I start work next Monday. "
    "Please tell your mother that the plant she gave me has survived, and write to me soon. With love, "
    "Martin.",
)
QUESTIONS = (
    "What is the capital of France?", "Count from one to ten.", "Write one sentence about the sea.",
    "Translate 'good morning' into Spanish.", "What is seven times eight?", "Name three colours.",
    "Why is the sky blue?", "What do bees make?", "Give me a synonym for 'quick'.",
    "Which month comes after March?", "How many legs does a spider have?", "What is the opposite of 'cold'?",
    "Write a short greeting to a new colleague.", "What is water made of?", "Name a fruit that is yellow.",
    "Explain in one sentence what a queue is.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    precisions: tuple[str, ...]
    load: ClosedLoad
    context_tokens: int
    cache_bytes: int | None = None


ALL = (REFERENCE, "bfloat16", "fp8", "awq")
CPU = Size(ALL, ClosedLoad(8, 32, 16, rounds=3, requests=68), 512, 256 << 20)
CPU_QUICK = Size(ALL, ClosedLoad(8, 32, 8, rounds=1, requests=24), 512, 256 << 20)
GPU = Size(ALL, ClosedLoad(32, 256, 128, rounds=3, requests=256), 2048)
GPU_QUICK = Size(ALL, ClosedLoad(32, 256, 32, rounds=1, requests=64), 2048)

Answers = tuple[tuple[Scored, ...], tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, slots=True)
class Found:
    """answers: None with weights that mean nothing."""

    loaded: Loaded
    answers: Answers | None


def on(host: Host) -> Scenario:
    """The scenario, for that host. Bars: of bfloat16 and FP8, whose methods are vLLM's own and whole here."""
    full, quick = (GPU, GPU_QUICK) if host.gpu else (CPU, CPU_QUICK)

    async def measure(is_quick: bool) -> Result:
        size = quick if is_quick else full
        with tempfile.TemporaryDirectory() as folder:
            awq, missing = None, {}
            try:
                awq = await asyncio.to_thread(awq_model, host, Path(folder))
            except ConfigError as error:
                missing["awq"] = str(error)

            async def use(served: Served) -> Found:
                answers = None if host.dummy_weights else await asyncio.to_thread(_asked, served.url)
                return Found(await loaded(served, size.load), answers)

            found, not_run = await with_each(host, engines(host, size, awq), use)
        return told(found, {**missing, **not_run})

    near = (
        Bar("perplexity_ratio_of_bfloat16", "<=", 1.02, quick=False),
        Bar("same_likeliest_of_bfloat16", ">=", 0.95, quick=False),
        Bar("perplexity_ratio_of_fp8", "<=", 1.1, quick=False),
    )
    here = () if host.gpu else (Bar("not_run", "<=", 0.0),)
    return Scenario(
        name=f"{host.mark}{NAME}",
        question="What do bfloat16, FP8 and AWQ give over float32 on vLLM, and how near do the answers stay?",
        workload={
            "host": host.facts(), "full": full, "quick": quick, "texts": TEXTS, "questions": QUESTIONS,
            "answer_tokens": ANSWER_TOKENS, "awq_group": AWQ_GROUP,
        },
        bars=(Bar("failed", "<=", 0.0), *here, *(() if host.dummy_weights else near)),
        run=measure,
    )  # fmt: skip


def told(found: dict[str, Found], not_run: dict[str, str]) -> Result:
    """The reference is float32, or where that could not be run the first of the others. How like itself such
    another is says nothing, so that is None, and no bar of it is met."""
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {"not_run": not_run, "reference": None, "vllm": {}, "rounds": {}, "answers": {}}
    readable = {name: each.answers for name, each in found.items() if each.answers is not None}
    reference = next(iter(readable), None)
    details["reference"] = reference
    for name, each in found.items():
        figures |= {f"{figure}_of_{name}": each.loaded.figures[figure] for figure in SHOWN}
        details["vllm"][name] = each.loaded.version
        details["rounds"][name] = each.loaded.rounds
    for name, answers in readable.items():
        assert reference is not None
        near = asdict(likeness(readable[reference], answers))
        empty = name == reference != REFERENCE
        figures |= {
            f"{figure}_of_{name}": None if empty and figure != "mean_logprob" else near[figure]
            for figure in LIKENESS
        }
        details["answers"][name] = {
            "greedy": ["".join(tokens) for tokens in answers[1]],
            "perplexity_ratio_interval_95": near["perplexity_ratio_interval"],
            "num_tokens_scored": sum(len(text.logprobs) for text in answers[0]),
        }
    figures["failed"] = sum(each.loaded.figures["failed"] or 0.0 for each in found.values())
    figures["not_run"] = len(not_run)
    return Result(figures, details)


def commands(host: Host) -> list[str]:
    """What a full run starts, one after the other, where AWQ's weights are there or can be made."""
    awq = host.awq_model or "MADE_BY_ROUNDING"
    return [command(host, engine) for engine in engines(host, GPU if host.gpu else CPU, awq).values()]


def engines(host: Host, size: Size, awq_model: str | None) -> dict[str, Engine]:
    """By precision; without AWQ where there are no weights for it. FP8 has a scale for each matrix on GPUs,
    and for each block of 128 by 128 on processors: what vLLM has kernels for there."""
    options: dict[str, dict[str, Any]] = {
        name: {"dtype": name} for name in size.precisions if name not in ("fp8", "awq")
    }
    if "fp8" in size.precisions:
        options["fp8"] = {"dtype": "bfloat16", "quantisation": "fp8" if host.gpu else "fp8_per_block"}
    if "awq" in size.precisions and awq_model is not None:
        options["awq"] = {"dtype": "bfloat16", "model": awq_model}
    plain = Engine(size.load.clients, size.context_tokens, size.cache_bytes)
    return {name: replace(plain, **each) for name, each in options.items()}


def awq_model(host: Host, folder: Path) -> str:
    """Made in that folder unless there is one. Blocks for as long as that takes. Raises ConfigError where
    there is none and none can be made."""
    if host.awq_model is not None:
        return host.awq_model
    if host.dummy_weights:
        raise ConfigError("dummy weights are none that could be rounded")
    source = local_folder(host)
    if source is None:
        raise ConfigError(
            f"{host.model} is not a folder of this machine, so its weights cannot be rounded: name a "
            "checkpoint of AWQ (--awq-model), or bring the model here (llm-runtime models pull)"
        )
    target = folder / "awq"
    words = [host.interpreter(), awq_weights.__file__, str(source), str(target), str(AWQ_GROUP)]
    try:
        subprocess.run(words, capture_output=True, text=True, check=True, timeout=AWQ_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"the weights cannot be rounded: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"the weights were not rounded within {AWQ_TIMEOUT_S:g} s") from error
    return str(target)


def _asked(url: str) -> Answers:
    """One question after another, so that no batch decides how sums are rounded. Raises BackendError."""
    return tuple(_scored(url, text) for text in TEXTS), tuple(
        _greedy(url, question) for question in QUESTIONS
    )


def _scored(url: str, text: str) -> Scored:
    fields = {"model": MODEL, "prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    told = post_json(url, "/v1/completions", fields)["choices"][0]["logprobs"]
    read = slice(1, -1)  # nothing comes before the first, and the last is the engine's own
    likeliest = tuple(max(each, key=each.get) for each in told["top_logprobs"][read])
    return Scored(tuple(told["tokens"][:-1]), tuple(told["token_logprobs"][read]), likeliest)


def _greedy(url: str, question: str) -> tuple[str, ...]:
    fields = {
        "model": MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0,
        "max_tokens": ANSWER_TOKENS, "logprobs": True,
    }  # fmt: skip
    told = post_json(url, "/v1/chat/completions", fields)["choices"][0]["logprobs"]["content"]
    return tuple(each["token"] for each in told)


SCENARIO = on(Host())
