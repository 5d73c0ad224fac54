"""When a waiting request can no longer meet its deadline: serving it then would cost others theirs, and
help nobody.
"""

from __future__ import annotations

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.history import History

OPTIMISM = 0.7
"""Of the predicted time on an engine: what is evicted must be hopeless, not merely likely to be late."""


def hopeless_at(request: RuntimeRequest, history: History) -> float | None:
    """The instant from which it is too late to start; None without a limit.

    A stream must have its first token within `request_s`, so only its prompt's time counts for that; a
    total limit, and any limit of a plain reply, is for the whole answer. `first_byte_s` can be met by a
    comment and ends nobody.
    """
    limits = request.limits
    prompt_s = OPTIMISM * history.prompt_seconds(request)
    answer_s = OPTIMISM * history.seconds(request)
    instants = []
    if limits.request_s is not None:
        instants.append(limits.request_s - (prompt_s if request.stream else answer_s))
    if limits.total_s is not None:
        instants.append(limits.total_s - answer_s)
    return request.arrived_at + min(instants) if instants else None
