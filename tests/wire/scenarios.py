"""The recorded streams of `golden/` and what a reader must know of the requests behind them.

`llama_*` were recorded from llama.cpp with progress and usage on; `vllm_chat` has vLLM's shape;
`tool_calls` and `sloppy_chat` are made up of what engines have been reported to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.options import RelayOptions

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Scenario:
    name: str
    kind: EndpointKind = EndpointKind.CHAT
    num_choices: int = 1
    num_prompts: int = 1
    llama: bool = False

    @property
    def stream(self) -> bytes:
        return (GOLDEN / f"{self.name}.in.sse").read_bytes()

    def golden(self, suffix: str) -> Path:
        return GOLDEN / f"{self.name}.{suffix}"

    def options(self, *, include_usage: bool = False) -> RelayOptions:
        return RelayOptions(
            kind=self.kind,
            id="our-id",
            created=1_700_000_000,
            model="alias",
            include_usage=include_usage,
            num_choices=self.num_choices,
            num_prompts=self.num_prompts,
            usage_per_choice=self.llama,
            translate_logprobs=self.llama,
        )


TEXT = EndpointKind.COMPLETIONS
SCENARIOS = [
    Scenario("llama_chat", llama=True),
    Scenario("llama_chat_n2", num_choices=2, llama=True),
    Scenario("llama_chat_logprobs", llama=True),
    Scenario("llama_completion", TEXT, llama=True),
    Scenario("llama_completion_2x2", TEXT, num_choices=4, num_prompts=2, llama=True),
    Scenario("llama_completion_logprobs", TEXT, llama=True),
    Scenario("vllm_chat"),
    Scenario("tool_calls"),
    Scenario("sloppy_chat"),
]
