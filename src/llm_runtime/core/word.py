"""An enumeration of words whose values are asked for in every request."""

from __future__ import annotations

from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING


class Word(StrEnum):
    """As `StrEnum`; but that one's `value` goes through two Python functions, and this one's through none."""

    if not TYPE_CHECKING:
        value = property(attrgetter("_value_"))
