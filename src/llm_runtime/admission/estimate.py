"""How many prompt tokens a request of so many bytes has: learnt from the usage engines report.

An estimate steers limits and queues only; what is counted in the end is the engine's usage.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from llm_runtime.core.outcome import RequestRecord

DEFAULT_BYTES_PER_TOKEN: Final = 4.0
MIN_BYTES_PER_TOKEN: Final = 1.0
MAX_BYTES_PER_TOKEN: Final = 16.0
MAX_OFFSET_TOKENS: Final = 1024.0
MAX_MODELS: Final = 256

# The length at which a surprise is blamed half on the constant part, half on bytes per token.
BALANCE_BYTES: Final = 256.0
FIRST_GAIN: Final = 0.5
LAST_GAIN: Final = 0.05


class _Fit:
    """tokens = offset + slope * bytes, fitted by normalised least mean squares.

    The step is relative to the length, so a prompt with an image of a megabyte shifts the slope by at
    most the gain, and a short prompt moves the offset (the chat template) but hardly the slope.
    """

    __slots__ = ("num_seen", "offset", "slope")

    def __init__(self) -> None:
        self.offset = 0.0
        self.slope = 1 / DEFAULT_BYTES_PER_TOKEN
        self.num_seen = 0

    def predict(self, num_bytes: int) -> float:
        return self.offset + self.slope * num_bytes

    def learn(self, num_bytes: int, num_tokens: int) -> None:
        self.num_seen += 1
        gain = max(LAST_GAIN, min(FIRST_GAIN, 1 / self.num_seen))
        x = num_bytes / BALANCE_BYTES
        step = gain * (num_tokens - self.predict(num_bytes)) / (1 + x * x)
        self.offset = min(max(self.offset + step, 0.0), MAX_OFFSET_TOKENS)
        slope = self.slope + step * x / BALANCE_BYTES
        self.slope = min(max(slope, 1 / MAX_BYTES_PER_TOKEN), 1 / MIN_BYTES_PER_TOKEN)


class TokenEstimator:
    """Owned by the runtime; used on the loop's thread. Keeps the `max_models` observed last."""

    __slots__ = ("_fits", "_max_models", "_newest")

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._fits: OrderedDict[str, _Fit] = OrderedDict()
        self._max_models = max_models
        # The model observed last, which is mostly the next one too.
        self._newest: tuple[str, _Fit] | None = None

    def estimate(self, model: str, num_bytes: int) -> int:
        """Prompt tokens, at least 1. A model never observed: 4 bytes a token."""
        fit = self._fits.get(model)
        tokens = fit.predict(num_bytes) if fit is not None else num_bytes / DEFAULT_BYTES_PER_TOKEN
        return max(1, math.ceil(tokens))

    def learn(self, record: RequestRecord) -> None:
        """What a request that has ended teaches."""
        request, usage = record.request, record.usage
        if not usage.estimated:
            self.observe(request.model, request.num_prompt_bytes, usage.prompt_tokens)

    def observe(self, model: str, num_bytes: int, prompt_tokens: int) -> None:
        """What the engine counted for a prompt of that many bytes. Never feed it estimated usage."""
        if num_bytes <= 0 or prompt_tokens <= 0:
            return
        newest = self._newest
        fit = newest[1] if newest is not None and newest[0] == model else self._observed(model)
        fit.learn(num_bytes, prompt_tokens)

    def _observed(self, model: str) -> _Fit:
        fit = self._fits.get(model)
        if fit is None:
            if len(self._fits) >= self._max_models:
                self._fits.popitem(last=False)
            fit = self._fits[model] = _Fit()
        else:
            self._fits.move_to_end(model)
        self._newest = (model, fit)
        return fit
