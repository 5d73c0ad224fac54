"""What an attempt's end says of a replica (field case F31), for every error there is."""

from __future__ import annotations

import pytest

from llm_runtime.core import errors as e
from llm_runtime.routing.verdict import Verdict, may_try_elsewhere, may_try_here, verdict_of

REFUSED, BUSY, FAILED = Verdict.REFUSED, Verdict.BUSY, Verdict.FAILED

CASES = [
    # error, verdict, may try here at once, elsewhere if it took nothing, elsewhere if it may have begun
    (e.InvalidRequest("x"), REFUSED, False, False, False),
    (e.ContextLengthExceeded("x"), REFUSED, False, False, False),
    (e.ModelNotFound("x"), REFUSED, False, False, False),
    (e.BodyTooLarge("x"), REFUSED, False, False, False),
    (e.UnprocessableRequest("x"), REFUSED, False, False, False),
    (e.UpstreamUnauthorized("x"), REFUSED, False, False, False),
    (e.UpstreamForbidden("x"), REFUSED, False, False, False),
    (e.UpstreamNotFound("x"), REFUSED, False, False, False),
    (e.UpstreamRateLimited("x", retry_after_s=5), BUSY, False, True, True),
    (e.BackendUnavailable("x", retry_after_s=1), BUSY, False, True, True),
    (e.BackendUnavailable("refused the connection"), FAILED, True, True, True),
    (e.UpstreamFailing("a bare 503"), FAILED, False, True, True),
    (e.BackendError("500, or the connection lost"), FAILED, False, False, True),
    (e.BackendProtocolError("garbage"), FAILED, False, False, True),
    (e.BackendCrashed("x"), FAILED, False, False, False),
]


@pytest.mark.parametrize(("error", "verdict", "here", "untaken", "begun"), CASES, ids=repr)
def test_what_it_says(
    error: e.LLMRuntimeError, verdict: Verdict, here: bool, untaken: bool, begun: bool
) -> None:
    assert verdict_of(error) is verdict
    assert may_try_here(error) is here
    assert may_try_elsewhere(error, unanswered=False) is untaken
    assert may_try_elsewhere(error, unanswered=True) is begun
