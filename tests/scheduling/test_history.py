"""What is learnt from ended requests: lengths, times, and whether predictions are worth anything."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.scheduling.history import MIN_FOR_TRUST, Habits, History, ServiceTimes, Trust
from tests.scheduling.pools import make_request


def asked(tenant: str = "a", cap: int = 100, kind: EndpointKind = EndpointKind.CHAT) -> RuntimeRequest:
    return replace(make_request("r", max_tokens=cap), tenant=tenant, kind=kind)


# ---- lengths


def test_nobody_knows_better_than_the_cap_at_first() -> None:
    assert Habits().predict(asked(cap=77)) == 77


def test_a_tenant_whose_answers_have_a_length_of_their_own() -> None:
    lengths = Habits()
    for cap in (100, 400, 50, 1000, 200):
        lengths.learn(asked(cap=cap), 40)
    assert lengths.predict(asked(cap=800)) == pytest.approx(40)
    assert lengths.predict(asked(cap=25)) == 25


def test_a_tenant_whose_answers_fill_the_cap() -> None:
    lengths = Habits()
    for cap in (100, 400, 50, 1000, 200):
        lengths.learn(asked(cap=cap), cap)
    assert lengths.predict(asked(cap=800)) == pytest.approx(800)


def test_tenants_and_endpoints_are_told_apart_and_strangers_get_the_endpoints_mean() -> None:
    lengths = Habits()
    for _ in range(10):
        lengths.learn(asked("terse", cap=500), 10)
        lengths.learn(asked("wordy", cap=500), 300)
    assert lengths.predict(asked("terse", cap=500)) == pytest.approx(10)
    assert lengths.predict(asked("wordy", cap=500)) == pytest.approx(300)
    assert 10 < lengths.predict(asked("new", cap=500)) < 300
    assert lengths.predict(asked("terse", cap=500, kind=EndpointKind.COMPLETIONS)) == 500


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from((EndpointKind.CHAT, EndpointKind.COMPLETIONS)),
        st.integers(1, 500),  # cap
        st.floats(1.0, 500.0),
        st.sampled_from((0.0, 0.5)),
    ),
    max_size=40,
)


@given(samples=SAMPLES, max_keys=st.integers(1, 7))
def test_a_tenant_and_its_endpoint_learn_as_if_each_learnt_alone(
    samples: list[tuple[str, EndpointKind, int, float, float]], max_keys: int
) -> None:
    habits, own = Habits(max_keys), dict[tuple[str, EndpointKind], Habits]()
    of_all: defaultdict[EndpointKind, Habits] = defaultdict(Habits)
    for tenant, kind, cap, tokens, cached_share in samples:
        habits.learn(asked(tenant, cap, kind), tokens, cached_share)
        known = own.pop((tenant, kind), None)
        if known is None and len(own) >= max_keys:
            del own[next(iter(own))]  # the one seen longest ago
        own[tenant, kind] = known = known or Habits()
        for one in (known, of_all[kind]):
            one.learn(asked("any", cap, kind), tokens, cached_share)
        for name in "abcx":
            probe, alone = asked(name, 77, kind), asked("any", 77, kind)
            expected = own.get((name, kind), of_all[kind])
            assert habits.predict(probe) == expected.predict(alone)
            assert habits.computed(probe) == expected.computed(alone)


def test_old_habits_are_forgotten() -> None:
    lengths = Habits()
    for _ in range(200):
        lengths.learn(asked(cap=1000), 500)
    for _ in range(40):
        lengths.learn(asked(cap=1000), 20)
    assert lengths.predict(asked(cap=1000)) == pytest.approx(20, rel=0.5)


def test_the_number_of_tenants_is_bounded() -> None:
    lengths = Habits(max_keys=2)
    for tenant, tokens in (("a", 10), ("b", 20), ("a", 10), ("c", 30)):
        lengths.learn(asked(tenant, cap=500), tokens)
    assert lengths.predict(asked("a", cap=500)) == pytest.approx(10)
    assert lengths.predict(asked("b", cap=500)) not in (pytest.approx(20), 500)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=30), st.integers(1, 1000))
def test_a_prediction_is_between_one_and_the_cap(samples: list[tuple[int, int]], cap: int) -> None:
    lengths = Habits()
    for its_cap, tokens in samples:
        lengths.learn(asked(cap=its_cap), min(tokens, its_cap))
    assert 1 <= lengths.predict(asked(cap=cap)) <= cap


# ---- times


def test_times_are_split_between_prompt_and_answer() -> None:
    times, source = ServiceTimes(), random.Random(1)
    assert times.seconds(100, 100) == 0
    for _ in range(60):
        prompt, tokens = source.randint(1, 500), source.randint(1, 200)
        times.learn(prompt, tokens, 0.004 * prompt + 0.03 * tokens)
    assert times.factors() == pytest.approx((0.004, 0.03))


def test_an_engine_that_slowed_down_is_noticed() -> None:
    times, source = ServiceTimes(), random.Random(1)
    for slowness, number in ((1.0, 300), (3.0, 300)):
        for _ in range(number):
            prompt, tokens = source.randint(1, 500), source.randint(1, 200)
            times.learn(prompt, tokens, slowness * (0.004 * prompt + 0.03 * tokens))
    assert times.seconds(100, 100) == pytest.approx(3.0 * 3.4, rel=0.15)


def test_what_cannot_be_told_apart_is_the_answers() -> None:
    times = ServiceTimes()
    for number in range(1, 20):
        times.learn(10 * number, number, 2.0 * number)
    assert times.factors() == pytest.approx((0.0, 2.0))


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.floats(0, 1000)), max_size=40))
def test_no_token_takes_less_than_no_time(samples: list[tuple[int, int, float]]) -> None:
    times = ServiceTimes()
    for prompt, tokens, seconds in samples:
        times.learn(prompt, tokens, seconds)
    assert min(times.factors()) >= 0


# ---- trust


def trust_of(predict: str, number: int) -> float:
    trust, source = Trust(), random.Random(3)
    for _ in range(number):
        true = source.lognormvariate(3, 1)
        noise = source.lognormvariate(0, 0.3)
        trust.learn({"good": true * noise, "wrong": 1 / true, "blind": noise, "same": 5.0}[predict], true)
    return trust.value


def test_good_predictions_are_trusted_and_others_are_not() -> None:
    assert trust_of("good", 300) > 0.9
    assert trust_of("wrong", 300) == 0
    assert trust_of("blind", 300) < 0.3
    assert trust_of("same", 300) == 0


def test_trust_takes_evidence() -> None:
    assert trust_of("good", MIN_FOR_TRUST - 1) == 0
    assert trust_of("good", MIN_FOR_TRUST) > 0.5


def test_trust_is_lost_when_predictions_turn_bad() -> None:
    trust, source = Trust(), random.Random(3)
    for sign in (1, -1):
        for _ in range(300):
            true = source.lognormvariate(3, 1)
            trust.learn(true**sign, true)
    assert trust.value == 0


# ---- together


def test_a_history_learns_of_one_sequence_and_of_what_was_computed() -> None:
    history = History()
    request = replace(asked(cap=100), num_slots=2, num_prompt_tokens=100)
    for _ in range(5):
        history.learn(request, Usage(100, 80, cached_tokens=60), 4.0, None)
    assert history.predict(request) == pytest.approx(40)
    assert history.service.seconds(0, 40) == pytest.approx(4.0)


def test_what_engines_have_cached_of_a_tenants_prompts_is_not_expected_to_take_time() -> None:
    """A prediction that counted tokens the samples did not count would be several times too long."""
    history, source = History(), random.Random(1)
    for _ in range(400):
        prompt, tokens = source.randint(50, 150), source.randint(10, 100)
        usage = Usage(prompt, tokens, cached_tokens=prompt * 8 // 10)
        history.learn(asked(), usage, 0.01 * (prompt - usage.cached_tokens) + 0.02 * tokens, None)
    request = replace(asked(), num_prompt_tokens=100)
    assert history.habits.computed(request) == pytest.approx(20, rel=0.05)
    assert history.prompt_seconds(request) == pytest.approx(0.2, rel=0.1)
    assert history.prompt_weight == pytest.approx(0.5, rel=0.3)
    assert history.work(request) == pytest.approx(history.predict(request) + 0.5 * 20, rel=0.1)


def test_how_long_prompts_take_is_seen_where_first_tokens_are_told() -> None:
    """An engine that shares its time between requests stretches the rest of an answer as well: what whole
    times say of the prompt is too much."""
    history, source = History(), random.Random(1)
    for _ in range(100):
        request = replace(asked(), num_prompt_tokens=source.randint(10, 100))
        history.learn_prompt(request, 0.05 + 0.001 * request.num_prompt_tokens)
        history.learn(request, Usage(request.num_prompt_tokens, 20), 2.0, None)
    request = replace(asked(), num_prompt_tokens=50)
    assert history.prompt_seconds(request) == pytest.approx(0.1)
    assert history.seconds(request) > 1.0


def test_of_an_endpoint_that_nobody_used_nothing_is_cached() -> None:
    history = History()
    request = replace(asked(), num_prompt_tokens=100)
    assert history.habits.computed(request) == 100
    history.learn(request, Usage(100, 10, cached_tokens=100), 1.0, None)  # the last one is always computed
    assert history.habits.computed(request) == pytest.approx(1)
    assert history.habits.computed(replace(request, kind=EndpointKind.COMPLETIONS)) == 100


def test_answers_without_tokens_teach_nothing() -> None:
    history = History()
    history.learn(asked(), Usage(100, 0), 4.0, 1.0)
    assert history.seconds(asked()) == 0


def test_given_predictions_replace_learnt_ones() -> None:
    history = History(lambda request: 7.0)
    history.learn(asked(cap=50), Usage(10, 50), 1.0, None)
    assert history.predict(asked(cap=50)) == 7.0
