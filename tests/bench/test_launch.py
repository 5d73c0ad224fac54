"""Servers of the harness's own."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from llm_runtime.bench.launch import launched

FILES = f"{shlex.quote(sys.executable)} -m http.server {{port}} --bind 127.0.0.1"


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux's classes")
@pytest.mark.parametrize("stands_back", [False, True])
async def test_a_server_gives_way_to_the_client_where_it_is_told_to(stands_back: bool) -> None:
    usual = os.sched_getscheduler(0)
    async with launched(FILES, {}, "/", stands_back=stands_back) as url:
        assert os.sched_getscheduler(url.pid) == (os.SCHED_IDLE if stands_back else usual)
    with pytest.raises(ProcessLookupError):
        os.kill(url.pid, 0)
