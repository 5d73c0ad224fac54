"""What is left of an error once it was dealt with."""

from __future__ import annotations

import gc
import weakref

from llm_runtime.core.errors import BackendError, ClientGone, forget_frames


class Held:
    """Something that a frame holds."""


def fail() -> tuple[BackendError, weakref.ref[Held]]:
    held = Held()
    try:
        try:
            raise ClientGone("gone")
        except ClientGone as first:
            raise BackendError("failed") from first
    except BackendError as error:
        return error, weakref.ref(held)


def test_frames_are_forgotten_of_an_error_and_of_what_it_came_from() -> None:
    error, held = fail()
    gc.collect()
    assert held() is not None, "a traceback keeps what its frames held"
    cause = error.__cause__
    assert cause is not None
    forget_frames(error)
    assert error.__traceback__ is None
    assert cause.__traceback__ is None
    assert held() is None


def test_an_error_that_was_never_raised_is_left_as_it_is() -> None:
    error = BackendError("never")
    forget_frames(error)
    assert error.__traceback__ is None
