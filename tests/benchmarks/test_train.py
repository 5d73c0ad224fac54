"""The load that a compiled build is made by, in short: that all of it is still answered."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from benchmarks.overhead import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def test_all_of_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `make compiled` goes on without a record, and says so where nobody may look."""
    short = replace(train.PLAN, streams_s=0.2, plain_s=0.2, warmup_s=0.1, num_tokens=4)
    monkeypatch.setattr(train, "PLAN", short)
    assert train.main() == 0
