"""Servers of the harness's own."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from llm_runtime.bench.launch import launched

FILES = f"{shlex.quote(sys.executable)} -m http.server {{port}} --bind 127.0.0.1"


@pytest.mark.parametrize("niceness", [0, 7])
async def test_a_server_stands_back_as_far_as_it_is_told(niceness: int) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    async with launched(FILES, {}, "/", niceness=niceness) as url:
        assert os.getpriority(os.PRIO_PROCESS, url.pid) == min(mine + niceness, 19)
    with pytest.raises(ProcessLookupError):
        os.kill(url.pid, 0)
