"""The short notations of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from llm_runtime.bench.config import (
    ClosedLoop,
    Limits,
    OpenLoop,
    Plan,
    Prefix,
    Segment,
    Target,
    TrafficClass,
    check,
)
from llm_runtime.bench.launch import filled
from llm_runtime.bench.lengths import Fixed, Uniform
from llm_runtime.bench.notation import (
    parse_headers,
    parse_numbers,
    parse_prefix,
    parse_profile,
    parse_traffic,
    parse_vary,
    parse_whole_numbers,
)
from llm_runtime.bench.sweep import Levels, Server
from llm_runtime.core.errors import ConfigError


def test_a_class_says_what_differs() -> None:
    default = TrafficClass(output_tokens=Fixed(7), tenant="all")
    text = (
        "name=chat, share=3,input=uniform:64:512,priority=2,prefix=1024:8,turns=2,think=0.5,patience=3,key=k"
    )
    assert parse_traffic(text, default) == TrafficClass(
        "chat", 3.0, Uniform(64, 512), Fixed(7), Prefix(1024, 8), Fixed(2), 0.5, 2, "all", "k", 3.0
    )


def test_profiles_prefixes_lists_and_headers() -> None:
    assert parse_profile("60@1-20, 30@5") == (Segment(60.0, 1.0, 20.0), Segment(30.0, 5.0, 5.0))
    assert parse_prefix("100") == Prefix(100, 1)
    assert parse_vary(["a=1, 2", "b=x"]) == {"a": ("1", "2"), "b": ("x",)}
    assert parse_headers(["X-A: b: c"]) == {"x-a": "b: c"}
    assert parse_numbers("1,2.5") == (1.0, 2.5)
    assert parse_whole_numbers("1,8") == (1, 8)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (lambda text: parse_traffic(text, TrafficClass()), "size=3"),
        (lambda text: parse_traffic(text, TrafficClass()), "priority=high"),
        (parse_profile, "60"),
        (parse_profile, "60@fast"),
        (parse_prefix, "10:0"),
        (parse_prefix, "x"),
        (lambda text: parse_vary([text]), "slots"),
        (lambda text: parse_headers([text]), "no colon"),
        (parse_numbers, "1,x"),
        (parse_numbers, "0"),
        (parse_numbers, "nan"),
        (parse_whole_numbers, "1.5"),
    ],
)
def test_what_cannot_be_read_is_named(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert re.split("[=,]", text)[0] in caught.value.message


@pytest.mark.parametrize(
    ("load", "limits", "says"),
    [
        (ClosedLoop(), Limits(), "no end"),
        (ClosedLoop(0), Limits(requests=1), "concurrency"),
        (OpenLoop(0.0), Limits(requests=1), "rate"),
        (OpenLoop(float("inf")), Limits(duration_s=1.0), "infinite"),
        (OpenLoop(profile=(Segment(1.0, 0.0, 0.0),)), Limits(requests=1), "never sends"),
        (OpenLoop(profile=(Segment(0.0, 1.0, 1.0),)), Limits(requests=1), "segment"),
        (ClosedLoop(), Limits(duration_s=2.0, warmup_s=1.0, cooldown_s=1.0), "warm-up"),
        (ClosedLoop(), Limits(requests=9, cooldown_s=1.0), "duration"),
    ],
)
def test_plans_that_make_no_sense_are_refused(load: Any, limits: Limits, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(Plan(Target("http://x"), load, limits=limits))


def test_levels_replace_the_load_and_scale_its_length() -> None:
    plan = Plan(Target("http://x"), OpenLoop(1.0, "gamma", 0.5, max_in_flight=9))
    plans = Levels(rates=(2.0, 8.0), requests_per_level=10).plans(plan)
    assert [each.load for each in plans] == [
        OpenLoop(rate, "gamma", 0.5, max_in_flight=9) for rate in (2.0, 8.0)
    ]
    assert [each.limits.requests for each in plans] == [20, 80]
    assert [each.load for each in Levels((1, 4)).plans(plan)] == [ClosedLoop(1), ClosedLoop(4)]
    for wrong in (Levels(), Levels((1,), (1.0,))):
        with pytest.raises(ConfigError, match="give one"):
            wrong.plans(plan)


def test_a_server_is_tried_in_every_combination_of_its_settings() -> None:
    server = Server("serve --port {port} -s {slots} -t {wait}", {"slots": ("1", "2"), "wait": ("5", "9")})
    assert server.settings() == [
        {"slots": "1", "wait": "5"}, {"slots": "1", "wait": "9"},
        {"slots": "2", "wait": "5"}, {"slots": "2", "wait": "9"},
    ]  # fmt: skip
    words = filled(server.template, {**server.settings()[1], "port": 80})
    assert words == ["serve", "--port", "80", "-s", "1", "-t", "9"]
    with pytest.raises(ConfigError, match="cannot be filled in"):
        filled("serve {other}", {})
