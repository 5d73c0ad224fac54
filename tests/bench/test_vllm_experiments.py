"""The arithmetic of the experiments on vLLM, with answers known beforehand; and the commands they start."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llm_runtime.bench import awq_weights
from llm_runtime.bench.knee import knee
from llm_runtime.bench.likeness import Scored, beginning, likeness
from llm_runtime.bench.scenario import Result, check
from llm_runtime.bench.scenarios import vllm_max_num_seqs, vllm_memory_share, vllm_precision
from llm_runtime.bench.vllm_host import (
    Cache,
    Host,
    read_cache,
    read_preemptions,
)
from llm_runtime.bench.vllm_load import LATENCIES, Loaded
from llm_runtime.core.errors import BackendError

# ---- the knee


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ({1: 10.0, 2: 20.0, 4: 37.0, 8: 40.0}, 4),  # 37 of 40 is more than nine tenths, 20 is not
        ({1: 10.0, 2: 20.0, 4: 36.0, 8: 40.0}, 4),  # exactly nine tenths is enough
        ({8: 40.0, 1: 10.0, 4: 30.0}, None),  # still rising at the end of what was tried
        ({1: 40.0, 2: 39.0, 4: 20.0}, 1),  # more only harms
        ({1: 36.0, 2: 30.0, 4: 40.0}, 1),  # a dip between is no knee
    ],
)  # fmt: skip
def test_the_knee_is_the_smallest_value_that_gives_nine_tenths(
    rates: dict[int, float], found: int | None
) -> None:
    assert knee(rates) == found


def test_one_value_has_no_knee() -> None:
    with pytest.raises(ValueError, match="two values"):
        knee({4: 1.0})


# ---- likeness


def text(*logprobs: float, likeliest: str = "bcd", tokens: str = "abcd") -> Scored:
    return Scored(tuple(tokens), logprobs, tuple(likeliest))


def test_an_engine_is_like_itself() -> None:
    own = ([text(-1.0, -2.0, -3.0)], [("x", "y")])
    found = likeness(own, own)
    assert (found.mean_logprob, found.perplexity_ratio) == (-2.0, 1.0)
    assert (found.same_likeliest, found.same_answers, found.same_beginning) == (1.0, 1.0, 1.0)


def test_differences_are_counted_by_token() -> None:
    """Half a nat worse on the three tokens of one text and right on the six of the other: a third of half."""
    long = text(*[-1.0] * 6, tokens="abcdefg", likeliest="bcdefg")
    reference = ([text(-1.0, -1.0, -1.0), long], [("a", "b"), ("c", "d")])
    other = ([text(-1.5, -1.5, -1.5, likeliest="bxd"), long], [("a", "x", "z"), ("c", "d")])
    found = likeness(reference, other)
    assert found.perplexity_ratio == pytest.approx(math.exp(0.5 / 3))
    assert found.mean_logprob == pytest.approx(-(4.5 + 6.0) / 9)
    assert found.same_likeliest == pytest.approx(8 / 9)
    assert (found.same_answers, found.same_beginning) == (0.5, 0.75)
    assert found.perplexity_ratio_interval is None  # of two texts nobody knows the spread


def test_the_interval_holds_the_ratio() -> None:
    reference = [text(-1.0, -1.0, -1.0) for _ in range(6)]
    worse = [text(*(-1.0 - 0.02 * number,) * 3) for number in range(6)]
    found = likeness((reference, [()]), (worse, [()]))
    assert found.perplexity_ratio == pytest.approx(math.exp(0.05))
    assert found.perplexity_ratio_interval is not None
    low, high = found.perplexity_ratio_interval
    assert 1.0 < low < found.perplexity_ratio < high < math.exp(0.11)


def test_other_tokens_are_not_comparable() -> None:
    with pytest.raises(ValueError, match="other tokens"):
        likeness(
            ([text(-1.0, tokens="ab", likeliest="b")], []), ([text(-1.0, tokens="ac", likeliest="c")], [])
        )


@pytest.mark.parametrize(
    ("one", "two", "share"),
    [("abcd", "abxd", 0.5), ("abcd", "ab", 0.5), ("ab", "abcd", 1.0), ("", "", 1.0), ("", "a", 0.0)],
)
def test_the_beginning_is_a_share_of_the_reference(one: str, two: str, share: float) -> None:
    assert beginning(one, two) == share


# ---- weights of four bits


def unpacked(words: np.ndarray) -> np.ndarray:
    """As AWQ's kernels read them: output 8 k + ORDER[i] in nibble i of word k."""
    nibbles = np.stack(
        [(words.view(np.uint32) >> np.uint32(4 * i)) & np.uint32(15) for i in range(8)], axis=-1
    )
    places = np.argsort(np.array([0, 2, 4, 6, 1, 3, 5, 7]))
    return nibbles[..., places].reshape(words.shape[0], -1).astype(np.int32)


def test_words_hold_eight_outputs_in_awqs_order() -> None:
    codes = np.arange(16, dtype=np.int32).reshape(1, 16)
    words = awq_weights.packed(codes)
    assert words.dtype == np.int32
    assert words[0, 0].view(np.uint32) == 0x75316420
    assert np.array_equal(unpacked(words), codes)


def test_rounding_is_as_exact_as_four_bits_allow() -> None:
    weight = np.random.default_rng(0).normal(size=(16, 128)).astype(np.float32)
    weight[3, :64] = 0.0  # a group of nothing
    weight[4, :64] = np.abs(weight[4, :64]) + 1.0  # of one sign
    codes, zeros, scales = awq_weights.rounded(weight, 64)
    assert codes.shape == (128, 16)
    assert zeros.shape == scales.shape == (2, 16)
    assert codes.min() >= 0
    assert codes.max() <= 15
    wide = np.repeat(scales.astype(np.float32), 64, axis=0)
    back = (codes - np.repeat(zeros, 64, axis=0)) * wide
    assert np.all(
        np.abs(back - weight.T) <= 1.01 * wide
    )  # half a step, half of the zero's, and half precision
    assert not back[:64, 3].any()


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no groups"):
        awq_weights.rounded(np.zeros((8, 100), dtype=np.float32), 64)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("model.layers.0.self_attn.q_proj.weight", (8, 8), True), ("model.embed_tokens.weight", (8, 8), False),
     ("model.layers.0.input_layernorm.weight", (8,), False), ("lm_head.weight", (8, 8), False),
     ("model.layers.0.self_attn.q_proj.bias", (8,), False)],
)  # fmt: skip
def test_only_projections_are_rounded(name: str, shape: tuple[int, ...], expected: bool) -> None:
    assert awq_weights.is_rounded(name, shape) is expected


# ---- what vLLM says of itself

PAGE = """# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="91"} 1.0
"""


def test_vllms_page() -> None:
    assert read_preemptions(PAGE) == 7
    assert read_cache(PAGE).num_tokens == 91 * 32


def test_what_is_not_said_is_no_zero() -> None:
    for read in (read_preemptions, read_cache):
        with pytest.raises(BackendError):
            read('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0\n')


# ---- results


def measured(rate: float, *, preemptions: float = 0.0, failed: float = 0.0) -> Loaded:
    figures = dict.fromkeys((*LATENCIES, "cache_use_max", "gpu_utilisation"), 1.0)
    told = {"output_throughput": rate, "preemptions": preemptions, "failed": failed}
    return Loaded((rate, rate + 1.0), {**figures, **told}, [{"failed": failed}])


def test_a_sweep_tells_its_knee_and_what_could_not_be_run() -> None:
    found = {8: measured(95.0), 1: measured(10.0), 16: measured(100.0, failed=2.0)}
    result = vllm_max_num_seqs.told(found, {"32": "no memory"})
    assert (result.figures["knee"], result.figures["knee_of_round_1"]) == (8, 8)
    assert (result.figures["output_throughput_at_16"], result.figures["failed"]) == (100.0, 2.0)
    assert (result.figures["not_run"], result.details["not_run"]) == (1, {"32": "no memory"})
    assert [bar.met for bar in check(vllm_max_num_seqs.SCENARIO, result, quick=False)] == [False, False]


def test_with_one_value_left_there_is_no_knee() -> None:
    assert "knee" not in vllm_max_num_seqs.told({8: measured(95.0)}, {"1": "gone"}).figures


def bars(result: Result) -> dict[str, bool]:
    return {one.bar.figure: one.met for one in check(vllm_memory_share.SCENARIO, result, quick=True)}


def test_preemptions_of_the_largest_and_the_smallest_cache_are_held_to_bars() -> None:
    found = {
        "64_mib": (measured(100.0), Cache(91, 32)),
        "8_mib": (measured(25.0, preemptions=40.0), Cache(11, 32)),
    }
    result = vllm_memory_share.told(found, {})
    assert result.figures["throughput_least_over_most_cache"] == 0.25
    assert result.figures["cache_tokens_at_8_mib"] == 352
    assert all(bars(result).values())
    calm = vllm_memory_share.told({name: (measured(1.0), cache) for name, (_, cache) in found.items()}, {})
    assert not bars(calm)["preemptions_with_least_cache"]
    alone = vllm_memory_share.told({"64_mib": found["64_mib"]}, {"8_mib": "did not start"})
    assert not bars(alone)["preemptions_with_least_cache"]


def test_a_precision_that_was_not_run_is_told_and_the_reference_falls_to_the_next() -> None:
    near = ((text(-1.0, -1.0, -1.0),), (("a", "b"),))
    far = ((text(-1.1, -1.1, -1.1, likeliest="xcd"),), (("a", "c"),))
    found = {
        "bfloat16": vllm_precision.Found(measured(1.0), near),
        "fp8": vllm_precision.Found(measured(2.0), far),
    }
    result = vllm_precision.told(found, {"float32": "no kernel", "awq": "no checkpoint"})
    assert result.details["reference"] == "bfloat16"
    assert result.details["not_run"] == {"float32": "no kernel", "awq": "no checkpoint"}
    assert result.figures["perplexity_ratio_of_fp8"] == pytest.approx(math.exp(0.1))
    assert (result.figures["same_beginning_of_fp8"], result.figures["not_run"]) == (0.5, 2)
    assert (result.figures["mean_logprob_of_bfloat16"], result.figures["perplexity_ratio_of_bfloat16"]) == (
        -1.0,
        None,
    )


def test_dummy_weights_have_a_speed_and_no_quality() -> None:
    host = Host(gpu=True, dummy_weights=True)
    result = vllm_precision.told({"bfloat16": vllm_precision.Found(measured(1.0), None)}, {})
    assert result.figures["output_throughput_of_bfloat16"] == 1.0
    assert not any(name.startswith("perplexity") for name in result.figures)
    assert [one.met for one in check(vllm_precision.on(host), result, quick=False)] == [True]
