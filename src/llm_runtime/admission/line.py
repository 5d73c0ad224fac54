"""The virtual tail: places given to those who were refused, in the order in which they were told.

The k-th refused is told when there will be room behind what is queued and behind those who were told
before it. A place is kept from the instant that was told until its holder has had the time to come;
then it lapses. As of airline seats, not all that are promised are taken, and the longer the wait the fewer;
so a place weighs by the share of the last ones of such a wait whose holders came.

Nobody is turned away for the sake of a promise unless that would break it: whoever comes anew enters
while the queue leaves room for all who are expected, when they are expected.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass

MAX_WAIT_S = 60.0
"""SDKs of OpenAI do what they are told up to a minute, and as they like beyond it."""
GRACE_S = 1.25
"""Clients that read only whole seconds come up to one second late; a round trip on top."""
GRACE_SHARE = 0.05
EARLY_S = 0.05
MAX_PLACES = 16_384
RETURN_GAIN = 0.05
HALF_RETURN_S = 20.0
"""Of those who are told so long a wait every second is expected, until more is known."""
KINDS = 4
"""Of waits, within a factor of two."""
HEADROOM = 0.9
"""Of the drain rate that is promised. Were it all of it, what one answer takes longer than expected would be
made good by nobody, and promises would fail the more the farther ahead they are."""
NEWCOMER_SHARE = 0.85
"""Of the room that others may fill while there are promises."""
KEPT_SHARE = 0.5
"""Of the room that is kept at most for those who are due and have not come yet."""
LIKELY = 0.25
"""Places of which less is expected keep nobody behind them."""
ROUNDING = 1e-6
BUCKET_S = 0.125
"""Places are summed by their instants so finely, and what is learnt of their holders is looked at so often:
a minute of them is looked through in tens of microseconds."""


def at_most(seconds: float) -> float:
    """As a bound, but for rounding: 17 are 85 % of 20, whatever the interval both were multiplied by."""
    return seconds * (1 + ROUNDING)


@dataclass(slots=True, eq=False)
class Place:
    """told_s: what was said at the time. work: that its holder will bring."""

    key: Hashable
    work: float
    told_s: float
    due_at: float
    expires_at: float
    gone: bool = False

    @property
    def bucket(self) -> int:
        return int(self.due_at / BUCKET_S)

    @property
    def kind(self) -> int:
        """Waits within a fifth of each other are of one kind."""
        return round(KINDS * math.log2(max(self.told_s, 0.5)))


class _Returns:
    """The share of places whose holders came, by how long they had been told to wait."""

    __slots__ = ("_num_seen", "_shares")

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}
        self._num_seen: dict[int, int] = {}

    def share(self, kind: int) -> float:
        share = self._shares.get(kind)
        return 1 / (1 + (2 ** (kind / KINDS) / HALF_RETURN_S) ** 2) if share is None else share

    def learn(self, kind: int, came: bool) -> None:
        num_seen = self._num_seen[kind] = self._num_seen.get(kind, 0) + 1
        gain = max(RETURN_GAIN, 1 / (num_seen + 1))
        share = self.share(kind)
        self._shares[kind] = share + gain * (came - share)


class Line:
    """Of one pool; owned by its decision core, used by the capacity gate.

    Finding a place costs O(minute / BUCKET_S) at most, everything else O(log places); beside that, once in
    BUCKET_S, all sums are made anew.
    """

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self._by_key: dict[Hashable, list[Place]] = {}
        self._promised: dict[int, dict[int, float]] = {}  # work by bucket and kind of wait
        self._expected: dict[int, float] = {}  # of that, by bucket
        self._shares: dict[int, float] = {}  # by which it is expected, by kind
        self._summed_in = -1  # bucket
        self._lapsing: list[tuple[float, int, Place]] = []  # heap by expires_at
        self._serial = 0
        self._returns = _Returns()
        self.num_places = 0
        self.num_kept = self.num_lapsed = self.num_broken = 0

    def holder(self, key: Hashable, now: float) -> Place | None:
        """The place that who comes with this key was given first; it stays his."""
        self._pass_time(now)
        places = self._by_key.get(key)
        return places[0] if places else None

    def is_due(self, place: Place, now: float) -> bool:
        return now >= place.due_at - EARLY_S

    def take(self, place: Place, now: float) -> None:
        """Its holder has come and was let in."""
        self._resolve(place, came=True)
        self.num_kept += 1

    def has_room(self, backlog_s: float, own_s: float, room_s: float, rate: float, now: float) -> bool:
        """Whether somebody without a place may enter: a queue of backlog_s is no longer than room_s, and
        stays so for those who were told to come. own_s: what it adds to the queue. rate: work per second.
        """
        self._pass_time(now)
        if not self.num_places:
            return backlog_s <= at_most(room_s)
        most_s = NEWCOMER_SHARE * room_s
        this = int(now / BUCKET_S)
        due_s = sum([work for bucket, work in self._expected.items() if bucket <= this]) / rate
        filled_s = backlog_s + min(due_s, KEPT_SHARE * room_s)
        if filled_s > at_most(most_s):
            return False
        filled_s += own_s
        expected, most_s = self._expected, at_most(room_s) - now
        for bucket in sorted(expected):
            if bucket > this:
                filled_s += expected[bucket] / rate
                if filled_s - bucket * BUCKET_S > most_s:
                    return False
        return True

    def give(self, key: Hashable, work: float, wait_s: float, rate: float, now: float) -> float:
        """The first place that leaves those before it and those behind it theirs. wait_s: until there is
        room for whoever is next, by the queue alone. rate: work per second. Returns the seconds to tell."""
        self._pass_time(now)
        promised = HEADROOM * rate
        this, own_s = int(now / BUCKET_S), work / promised
        filled_s = told_s = wait_s
        expected, least_s = self._expected, LIKELY * own_s
        for bucket in sorted(expected):
            expected_s = expected[bucket] / promised
            if expected_s < least_s:
                filled_s += expected_s
                continue
            due_s = bucket * BUCKET_S - now
            if bucket <= this or filled_s + own_s > due_s + BUCKET_S:
                told_s = filled_s + expected_s
            # What is left free until then is for those who come anew.
            filled_s = max(filled_s, due_s) + expected_s
            if told_s > due_s:
                told_s = max(told_s, filled_s)
        return self._tell(key, work, told_s, now)

    def renew(self, place: Place, wait_s: float, rate: float, now: float) -> float:
        """Its holder came when told and there was no room after all: the next place, before all others."""
        self._resolve(place, came=True)
        self.num_broken += 1
        told_s = wait_s
        for bucket in sorted(self._expected):
            if bucket * BUCKET_S - now > told_s:
                break
            told_s += self._expected[bucket] / rate
        return self._tell(place.key, place.work, told_s, now)

    def _share(self, kind: int) -> float:
        share = self._shares.get(kind)
        if share is None:
            share = self._shares[kind] = self._returns.share(kind)
        return share

    def _sum_up(self) -> None:
        """By what has been learnt until now."""
        self._shares = {}
        self._expected = {
            bucket: sum([work * self._share(kind) for kind, work in promised.items()])
            for bucket, promised in self._promised.items()
        }

    def _tell(self, key: Hashable, work: float, told_s: float, now: float) -> float:
        if told_s > self._max_wait_s or self.num_places >= MAX_PLACES:
            return min(told_s, self._max_wait_s)  # nobody can promise so far ahead
        due_at = now + told_s
        place = Place(key, work, told_s, due_at, due_at + GRACE_S + GRACE_SHARE * told_s)
        self._serial += 1
        heapq.heappush(self._lapsing, (place.expires_at, self._serial, place))
        self._by_key.setdefault(key, []).append(place)
        bucket, kind = place.bucket, place.kind
        promised = self._promised.setdefault(bucket, {})
        promised[kind] = promised.get(kind, 0.0) + work
        self._expected[bucket] = self._expected.get(bucket, 0.0) + work * self._share(kind)
        self.num_places += 1
        return told_s

    def _pass_time(self, now: float) -> None:
        this = int(now / BUCKET_S)
        if this != self._summed_in:
            self._summed_in = this
            self._sum_up()
        while self._lapsing and (self._lapsing[0][2].gone or self._lapsing[0][0] <= now):
            place = heapq.heappop(self._lapsing)[2]
            if not place.gone:
                self._resolve(place, came=False)
                self.num_lapsed += 1

    def _resolve(self, place: Place, *, came: bool) -> None:
        place.gone = True
        places = self._by_key[place.key]
        places.remove(place)
        if not places:
            del self._by_key[place.key]
        self.num_places -= 1
        bucket, kind = place.bucket, place.kind
        promised = self._promised[bucket]
        promised[kind] -= place.work
        if promised[kind] <= ROUNDING * place.work:
            del promised[kind]
        self._expected[bucket] = max(self._expected[bucket] - place.work * self._share(kind), 0.0)
        if not promised:
            del self._promised[bucket], self._expected[bucket]
        self._returns.learn(kind, came)
