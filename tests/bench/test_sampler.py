"""Reading the gauges of the servers people run, without reading everything else."""

from __future__ import annotations

from llm_runtime.bench.sampler import Page, Sample, read_page, summarised
from llm_runtime.bench.stub import serve
from tests.bench.loads import QUICK, measure

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a{b}c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 5
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
"""
LLAMA_CPP = b"""llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:n_busy_slots_per_decode 1.5
"""
DCGM = b"""DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 50
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2"} 100
DCGM_FI_DEV_FB_USED{gpu="0"} 10
DCGM_FI_DEV_FB_USED{gpu="1"} 30 1700000000000
"""
OURS = b"""llm_runtime_requests_running{model="m",replica="m-0"} 2
llm_runtime_requests_running{model="m",replica="m-1"} 1
llm_runtime_requests_waiting{model="m"} 7
llm_runtime_gpu_utilization_ratio{gpu="0"} NaN
"""


def test_vllm() -> None:
    assert read_page(VLLM).gauges == {"running": 7.0, "waiting": 5.0, "kv_usage": 0.5}


def test_llama_cpp() -> None:
    assert read_page(LLAMA_CPP).gauges == {"running": 2.0, "waiting": 1.0}


def test_dcgm() -> None:
    assert read_page(DCGM).gauges == {"gpu_utilization": 0.75, "gpu_memory_bytes": 40 * 1024 * 1024}


def test_ours_and_values_that_are_none() -> None:
    assert read_page(OURS).gauges == {"running": 3.0, "waiting": 7.0}


def test_anything_else_says_nothing() -> None:
    assert read_page(b'{"request_count": 3}').gauges == {}
    assert read_page(b"vllm:num_requests_running many\n").gauges == {}


BATCHES = b"""llm_runtime_requests_running{model="m",replica="m-0"} 8
llm_runtime_batch_size_requests_bucket{replica="m-0",le="8"} %d
llm_runtime_batch_size_requests_count{replica="m-0"} %d
llm_runtime_batch_size_requests_sum{replica="m-0"} %d
"""


def test_batch_sizes_are_means_of_what_happened_between_two_samples() -> None:
    pages = [read_page(BATCHES % (count, count, total)) for count, total in ((4, 10), (6, 26), (6, 26))]
    assert pages[0].since(None) == {"running": 8.0}
    assert pages[1].since(pages[0]) == {"running": 8.0, "batch_size": 8.0}
    assert pages[2].since(pages[1]) == {"running": 8.0}
    assert pages[0].since(pages[1]) == {"running": 8.0}  # a server started anew


def test_several_engines_of_vllm_are_added_up() -> None:
    name = "vllm:iteration_tokens_total"
    earlier = Page({}, {f"{name}_sum": 100.0, f"{name}_count": 10.0})
    text = "".join(f'{name}_sum{{engine="{n}"}} 150\n{name}_count{{engine="{n}"}} 10\n' for n in (0, 1))
    assert read_page(text.encode()).since(earlier) == {"batch_tokens": 20.0}


def test_samples_are_told_in_short() -> None:
    found = summarised([Sample(0.0, {"running": 1.0}), Sample(1.0, {"running": 3.0, "kv_usage": 0.5})])
    assert found == {
        "running": {"mean": 2.0, "max": 3.0, "num_samples": 2},
        "kv_usage": {"mean": 0.5, "max": 0.5, "num_samples": 1},
    }
    assert summarised([]) == {}


async def test_a_load_is_sampled_while_it_runs() -> None:
    measured = await measure(requests=60, sample_interval_s=0.02)
    samples = measured.summary["samples"]
    assert measured.summary["sampled"]["running"]["num_samples"] == len(samples)
    assert len(samples) >= 2
    assert max(sample["running"] for sample in samples) >= 1
    instants = [sample["at_s"] for sample in samples]
    assert instants == sorted(instants)
    assert instants[-1] <= measured.result.end_s + 0.001  # instants are told in milliseconds


async def test_pages_beside_the_target_are_sampled_and_say_their_version() -> None:
    async with serve(QUICK) as other:
        place = f"127.0.0.1:{other.port}"
        urls = (f"http://{place}/metrics", "http://127.0.0.1:1/metrics")
        measured = await measure(requests=30, sample_interval_s=0.02, metrics_urls=urls)
    assert measured.summary["server"]["beside"] == {place: {"version": "stub"}, "127.0.0.1:1": None}
    # Two pages are looked at: the target's own and this one, which has nothing to do.
    assert 0 in {sample["running"] for sample in measured.summary["samples"]}
