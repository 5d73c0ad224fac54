"""What is learnt from requests that have ended: how long answers are, how long engines take, and how far
such predictions can be trusted. Pure arithmetic; every estimate has a bound and a value before the first
sample.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest

PredictTokens = Callable[[RuntimeRequest], float]
"""Tokens that one sequence of the answer will have; at least 1, at most the request's cap."""

GAIN: Final = 0.1
"""Of the newest sample, once ten have been seen; before that all count alike."""
MAX_KEYS: Final = 4096
FORGETTING: Final = 0.99
"""Weight of the sample before, by that of a new one: a hundred samples matter."""
MIN_FOR_TRUST: Final = 20
WEIGHT_EVERY: Final = 8
WEIGHT_GAIN: Final = 0.15
"""Of that many ends; 2 % of each."""
MAX_PROMPT_WEIGHT: Final = 1.0
"""Computing a prompt token never takes longer than generating one."""


class _Habit:
    """Of one tenant on one endpoint. Its answers: their mean, and their mean share of the cap; what told the
    last ones better is believed. Its prompts: the share of their tokens that engines had cached."""

    __slots__ = ("cached_share", "mean", "mean_error", "num_seen", "share", "share_error")

    def __init__(self) -> None:
        self.num_seen = 0
        self.mean = 0.0
        self.share = 1.0
        self.cached_share = 0.0
        self.mean_error = self.share_error = 0.0

    def predict(self, cap: int) -> float:
        expected = self.mean if self.mean_error < self.share_error else self.share * cap
        if expected < 1.0:
            return 1.0
        return expected if expected < cap else float(cap)

    def learn(self, cap: int, tokens: float, cached_share: float) -> None:
        """tokens: at least 1. Of every answer, so it is written to be cheap."""
        self.num_seen = num_seen = self.num_seen + 1
        weight = 1 / num_seen
        weight = max(weight, GAIN)
        mean, share = self.mean, self.share
        if num_seen > 1:
            by_mean, by_share = mean if mean < cap else cap, share * cap
            surprise = abs(math.log((by_mean if by_mean > 1.0 else 1.0) / tokens))
            self.mean_error += weight * (surprise - self.mean_error)
            surprise = abs(math.log((by_share if by_share > 1.0 else 1.0) / tokens))
            self.share_error += weight * (surprise - self.share_error)
        self.mean = mean + weight * (tokens - mean)
        self.share = share + weight * (tokens / cap - share)
        self.cached_share += weight * (cached_share - self.cached_share)

    def copy(self) -> _Habit:
        made = _Habit()
        made.num_seen, made.mean, made.share = self.num_seen, self.mean, self.share
        made.cached_share = self.cached_share
        made.mean_error, made.share_error = self.mean_error, self.share_error
        return made


class Habits:
    """Lengths of answers and cached prompts by tenant and endpoint; of an unknown tenant by endpoint, and of
    an unknown endpoint the cap and nothing. Keeps the keys seen last.

    While one tenant alone has used an endpoint, its habit is that of the endpoint too, as one object.
    """

    __slots__ = ("_by_kind", "_by_tenant", "_max_keys", "_newest", "_newest_kind", "_newest_tenant")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._by_tenant: OrderedDict[tuple[str, EndpointKind], _Habit] = OrderedDict()
        self._by_kind: dict[EndpointKind, _Habit] = {}
        self._max_keys = max_keys
        self._newest: _Habit | None = None  # of the key that learnt last, so nothing has to be moved for it
        self._newest_tenant = ""
        self._newest_kind: EndpointKind | None = None

    def predict(self, request: RuntimeRequest) -> float:
        """Tokens of one sequence, from 1 to the request's cap."""
        known = self.of(request)
        return float(request.max_tokens) if known is None else known.predict(request.max_tokens)

    def computed(self, request: RuntimeRequest) -> float:
        """Tokens of its prompt that an engine will have to compute."""
        known = self.of(request)
        tokens = request.num_prompt_tokens
        return float(tokens) if known is None else tokens * (1.0 - known.cached_share)

    def learn(self, request: RuntimeRequest, tokens: float, cached_share: float = 0.0) -> None:
        """tokens: of one sequence of a completed answer; at least 1. cached_share: of its prompt's."""
        cap, kind = request.max_tokens, request.kind
        habit = self._newest
        if habit is None or kind is not self._newest_kind or request.tenant != self._newest_tenant:
            habit = self._moved_to_end(request)
        habit.learn(cap, tokens, cached_share)
        of_all = self._by_kind[kind]
        if of_all is not habit:
            of_all.learn(cap, tokens, cached_share)

    def of(self, request: RuntimeRequest) -> _Habit | None:
        """What is known of its like, or of any on its endpoint."""
        kind, tenant = request.kind, request.tenant
        if kind is self._newest_kind and tenant == self._newest_tenant:
            return self._newest
        return self._by_tenant.get((tenant, kind)) or self._by_kind.get(kind)

    def _moved_to_end(self, request: RuntimeRequest) -> _Habit:
        """Its habit as the one that was seen last, made if there is none, and the endpoint's with it."""
        kind = request.kind
        key = (request.tenant, kind)
        habit = self._by_tenant.get(key)
        if habit is None:
            if len(self._by_tenant) >= self._max_keys:
                self._by_tenant.popitem(last=False)
            habit = self._by_tenant[key] = _Habit()
            of_all = self._by_kind.get(kind)
            # From its second tenant on an endpoint has a habit of its own.
            self._by_kind[kind] = habit if of_all is None else of_all.copy()
        else:
            self._by_tenant.move_to_end(key)
        self._newest, self._newest_tenant, self._newest_kind = habit, request.tenant, kind
        return habit


class ServiceTimes:
    """Seconds on an engine as `a * prompt tokens + b * generated tokens`: least squares with forgetting,
    neither factor below 0. 0 before the first sample."""

    __slots__ = ("_answer", "_answer_time", "_both", "_prompt", "_prompt_time", "num_seen")

    def __init__(self) -> None:
        self.num_seen = 0
        self._prompt = self._answer = self._both = self._prompt_time = self._answer_time = 0.0

    def learn(self, prompt_tokens: float, tokens: float, seconds: float) -> None:
        self.num_seen += 1
        self._prompt = FORGETTING * self._prompt + prompt_tokens * prompt_tokens
        self._answer = FORGETTING * self._answer + tokens * tokens
        self._both = FORGETTING * self._both + prompt_tokens * tokens
        self._prompt_time = FORGETTING * self._prompt_time + prompt_tokens * seconds
        self._answer_time = FORGETTING * self._answer_time + tokens * seconds

    def factors(self) -> tuple[float, float]:
        """Seconds per prompt token and per generated token."""
        squares = self._prompt * self._answer
        determinant = squares - self._both * self._both
        if determinant > 1e-6 * squares:
            a = (self._answer * self._prompt_time - self._both * self._answer_time) / determinant
            b = (self._prompt * self._answer_time - self._both * self._prompt_time) / determinant
            if a >= 0 and b >= 0:
                return a, b
            if a >= 0:
                return self._prompt_time / self._prompt, 0.0
        # Prompts and answers of one proportion cannot be told apart; generating is what takes long.
        return 0.0, self._answer_time / self._answer if self._answer else 0.0

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        a, b = self.factors()
        return a * prompt_tokens + b * tokens


class Trust:
    """From 0 to 1: the correlation of predicted with true sizes over the last hundred or so requests, on
    the scale of their logarithms; 0 until there are enough, and where they go against each other."""

    __slots__ = ("_num_seen", "_weight", "_x", "_xx", "_xy", "_y", "_yy")

    def __init__(self) -> None:
        self._num_seen = 0
        self._weight = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def learn(self, predicted: float, true: float) -> None:
        x, y = math.log(max(predicted, 1e-9)), math.log(max(true, 1e-9))
        self._num_seen += 1
        self._weight = FORGETTING * self._weight + 1
        self._x = FORGETTING * self._x + x
        self._y = FORGETTING * self._y + y
        self._xx = FORGETTING * self._xx + x * x
        self._xy = FORGETTING * self._xy + x * y
        self._yy = FORGETTING * self._yy + y * y

    @property
    def value(self) -> float:
        if self._num_seen < MIN_FOR_TRUST:
            return 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        var_x = self._xx / self._weight - mean_x * mean_x
        var_y = self._yy / self._weight - mean_y * mean_y
        if var_x < 1e-9 or var_y < 1e-9:
            return 0.0
        together = self._xy / self._weight - mean_x * mean_y
        return min(max(together / math.sqrt(var_x * var_y), 0.0), 1.0)


class History:
    """All of it for one pool. Owned by the pool's scheduler, which alone tells it of ends.

    predict: replaces the learnt lengths of answers.
    """

    def __init__(self, predict: PredictTokens | None = None) -> None:
        self.habits = Habits()
        self.service = ServiceTimes()
        self._prompts = ServiceTimes()
        """Until the first token, where that is told: of computed tokens, and of one constant."""
        self.trust = Trust()
        self.prompt_weight = 0.0
        """Time of a computed prompt token by that of a generated one. It moves slowly: it is a unit."""
        self._learnt = self.habits.predict
        self.predict = predict or self._learnt

    def seconds(self, request: RuntimeRequest) -> float:
        """Predicted time on an engine; 0 while nothing is known."""
        return self.service.seconds(self.habits.computed(request), self.predict(request))

    def prompt_seconds(self, request: RuntimeRequest) -> float:
        """The part of it until the first token: as was seen of such, else what the whole times say."""
        computed = self.habits.computed(request)
        if self._prompts.num_seen:
            return self._prompts.seconds(computed, 1)
        return self.service.seconds(computed, 0)

    def work(self, request: RuntimeRequest) -> float:
        """What it is expected to cost an engine, in generated tokens; prompt tokens count as many of them
        as they take time. At least 1."""
        known, cap = self.habits.of(request), request.max_tokens
        if self.predict is not self._learnt:
            tokens = self.predict(request)
        else:  # the same without its detour: for every request
            tokens = float(cap) if known is None else known.predict(cap)
        tokens *= request.num_slots
        computed = float(request.num_prompt_tokens)
        if known is not None:
            computed *= 1.0 - known.cached_share
        work = self.prompt_weight * computed + tokens
        return work if work > 1.0 else 1.0

    def _learn_weight(self) -> None:
        prompt_s, answer_s = self.service.factors()
        if answer_s > 0:
            weight = min(prompt_s / answer_s, MAX_PROMPT_WEIGHT)
            self.prompt_weight += WEIGHT_GAIN * (weight - self.prompt_weight)

    def learn_prompt(self, request: RuntimeRequest, seconds: float) -> None:
        """Its first token has come. What was cached is only told at its end, so it counts as usual."""
        self._prompts.learn(self.habits.computed(request), 1, seconds)

    def learn(self, request: RuntimeRequest, usage: Usage, seconds: float, predicted_s: float | None) -> None:
        """An answer is complete. predicted_s: what `seconds` had said when it came, None if not asked."""
        tokens = usage.completion_tokens / request.num_slots
        if tokens < 1:
            return
        prompt_tokens = usage.prompt_tokens
        computed = prompt_tokens - usage.cached_tokens
        computed = max(computed, 1)
        service = self.service
        self.habits.learn(request, tokens, 1.0 - computed / (prompt_tokens if prompt_tokens > 1 else 1))
        service.learn(computed, tokens, seconds)
        if not service.num_seen % WEIGHT_EVERY:
            self._learn_weight()
        if predicted_s:
            self.trust.learn(predicted_s, seconds)
