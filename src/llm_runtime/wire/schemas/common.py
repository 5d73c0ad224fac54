"""Types and fields that the endpoints share.

Numbers are strict: neither booleans nor numeric strings count, an integer does where a float is
wanted. Every optional field may be null, which means absent; `wire/requests.py` drops such keys
before validation. Fields nobody declared are ignored here and reported there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from llm_runtime.core.request import HIGHEST_PRIORITY, LOWEST_PRIORITY
from llm_runtime.wire.json import INT64_MAX, INT64_MIN

Str = Annotated[str, Strict()]
Bool = Annotated[bool, Strict()]
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict(), Field(allow_inf_nan=False)]

Int64 = Annotated[int, Strict(), Field(ge=INT64_MIN, le=INT64_MAX)]
TokenCount = Annotated[int, Strict(), Field(ge=0, le=INT64_MAX)]
TokenId = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]
Temperature = Annotated[float, Strict(), Field(ge=0, le=2, allow_inf_nan=False)]
Probability = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Strict(), Field(ge=-2, le=2, allow_inf_nan=False)]
NonEmptyStr = Annotated[str, Strict(), Field(min_length=1)]
ModelName = Annotated[str, Strict(), Field(min_length=1, max_length=512)]
Stop = NonEmptyStr | Annotated[list[NonEmptyStr], Field(max_length=4)]
LogitBias = dict[
    Annotated[str, Strict(), Field(pattern=r"^[0-9]{1,10}$")],
    Annotated[float, Strict(), Field(ge=-100, le=100, allow_inf_nan=False)],
]
Metadata = Annotated[
    dict[
        Annotated[str, Strict(), Field(max_length=64)],
        Annotated[str, Strict(), Field(max_length=512)],
    ],
    Field(max_length=16),
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


Priority = Annotated[int, Strict(), Field(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY)]


class SharedFields(BaseModel):
    """What the endpoints beside chat and completions have in common."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: ModelName
    priority: Priority | None = None


class StreamOptions(BaseModel):
    """include_obfuscation is understood and not done: padding is opt-in and not offered."""

    include_usage: Bool | None = None
    include_obfuscation: Bool | None = None


class GenerationRequest(BaseModel):
    """What a chat and a legacy completion have in common, the extras that engines share included."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: ModelName

    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    max_tokens: TokenCount | None = None
    n: Annotated[int, Strict(), Field(ge=1, le=128)] | None = None
    presence_penalty: Penalty | None = None
    seed: Int64 | None = None
    stop: Stop | None = None
    stream: Bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    user: Str | None = None

    priority: Priority | None = None
    service_tier: ServiceTier | None = None

    cache_salt: NonEmptyStr | None = None
    ignore_eos: Bool | None = None
    min_p: Probability | None = None
    min_tokens: TokenCount | None = None
    repetition_penalty: Annotated[float, Strict(), Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    stop_token_ids: list[TokenId] | None = None
    top_k: Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)] | None = None
    chat_template_kwargs: dict[Str, Any] | None = None
