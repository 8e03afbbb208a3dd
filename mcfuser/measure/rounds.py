"""What rounds of timings tell of programs that are timed in turns, and how surely.

In every round each program is timed once, so the two times of a round share whatever else the
machine did meanwhile. Two programs are compared by the ratio of their times within each round. How
sure a comparison is comes from a sign test: it counts rounds, so that a few that something
interrupted weigh no more than others, and it assumes nothing of how the times are distributed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARGIN = 0.98
"""Fewer kernels must take at most this share of the time of more: less is not told from noise."""
CONFIDENT = 0.98
"""A choice is sure where chance alone would have made fewer rounds agree in so many of cases."""
EQUAL = 1.02
"""Programs whose times differ by less than this factor may be taken for each other."""

BLOCKS = 7
"""Comparisons that are made of however many rounds: fewer could not be CONFIDENT."""

SPARE = 0.5
"""Seconds before a deadline in which no round is begun but the first ones."""

Times = Sequence[Sequence[float]]
"""Seconds of each program, round by round."""


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Programs that were timed in turns: their seconds (medians; infinity where one failed), the
    rounds they are from, and the state of the device. There are no rounds where the seconds are
    predicted, or are those of searches."""

    seconds: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def ratios(self, slow: int, fast: int) -> list[float]:
        """How many times as long the first of two programs took, round by round."""
        if not self.rounds:
            return []
        return ratios(self.rounds[slow], self.rounds[fast])


def quietest(times: Sequence[float]) -> list[float]:
    """The least time of each of BLOCKS runs of neighbouring rounds: what else wants a core makes
    some rounds longer and none shorter, so the more rounds there are, the less of it is left."""
    size = max(1, len(times) // BLOCKS)
    return [min(times[i : i + size]) for i in range(0, len(times) - size + 1, size)]


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """The first program's times over the second's, in the same rounds (`quietest`)."""
    count = min(len(slow), len(fast))
    both = zip(quietest(slow[:count]), quietest(fast[:count]), strict=True)
    return [a / b for a, b in both if b > 0]


def certainty(found: Sequence[float], limit: float) -> float:
    """How surely ratios lie above a limit, from 0 to 1: the share of cases in which fair coins
    would show fewer heads than there are rounds above it. 0.5 and less where nothing is known."""
    above, count = sum(r > limit for r in found), len(found)
    return 1.0 - sum(math.comb(count, k) for k in range(above, count + 1)) / (1 << count)


def interval(found: Sequence[float]) -> tuple[float, float]:
    """Bounds between which the median of the ratios lies as surely as CONFIDENT says; the extremes
    where there are too few rounds for that."""
    ordered, count = sorted(found), len(found)
    tail, cut = 1 / 2**count, 0
    while tail + math.comb(count, cut + 1) / 2**count <= (1 - CONFIDENT) / 2:
        cut += 1
        tail += math.comb(count, cut) / 2**count
    return ordered[cut], ordered[count - 1 - cut]


def fastest(times: Times) -> int:
    """The number of the program that takes the least, by its share of each round."""
    least = min(len(t) for t in times)
    quiet = [quietest(t[:least]) for t in times]
    means = [statistics.fmean(r) for r in zip(*quiet, strict=True)]
    shares = [statistics.median(t / m for t, m in zip(p, means, strict=True)) for p in quiet]
    return min(range(len(times)), key=lambda i: shares[i])


def is_decided(times: Times, baseline: int | None) -> bool:
    """Whether more rounds would not change what is chosen.

    With a `baseline`, that is whether the best of the other programs is faster than it by more than
    MARGIN; without one, which program is the fastest, unless the next one is as good.
    """
    if len(times) < 2:
        return True
    best = fastest(times)
    if baseline is not None:
        best = _among(times, [i for i in range(len(times)) if i != baseline])
        sure = certainty(ratios(times[baseline], times[best]), 1 / MARGIN)
        slower = certainty([1 / r for r in ratios(times[baseline], times[best])], MARGIN)
        return max(sure, slower) >= CONFIDENT
    for other in (i for i in range(len(times)) if i != best):
        found = ratios(times[other], times[best])
        low, high = interval(found)
        if certainty(found, 1.0) < CONFIDENT and not (low > 1 / EQUAL and high < EQUAL):
            return False
    return True


def _among(times: Times, some: Sequence[int]) -> int:
    return some[fastest([times[i] for i in some])]


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """How long programs are timed in turns: `least` rounds, and on until what is chosen is settled,
    but for no more than `most` rounds, and not past the time `end` of the clock."""

    least: int
    most: int
    end: float
    baseline: int | None = None


def round_limits(
    least: int, most: int, seconds: float, until: float | None, baseline: int | None, now: float
) -> RoundLimits:
    """Bounds of so many rounds that begin `now`, last no longer than `seconds` past the least, and
    end SPARE seconds before `until`, the deadline of whoever asked, if there is one."""
    end = now + seconds
    return RoundLimits(least, most, end if until is None else min(end, until - SPARE), baseline)


def time_interleaved(
    runs: Sequence[Callable[[], float]], bounds: RoundLimits, clock: Callable[[], float]
) -> list[list[float]]:
    """The seconds that each run tells, round by round; another one is first in every round."""
    times: list[list[float]] = [[] for _ in runs]
    for done in range(bounds.most):
        if done >= bounds.least:
            # after twice as many every time: with every look chance has another try at seeming sure
            look = done % bounds.least == 0 and (done // bounds.least).bit_count() == 1
            if clock() >= bounds.end or (look and is_decided(times, bounds.baseline)):
                break
        for i in range(len(runs)):
            at = (i + done) % len(runs)
            times[at].append(runs[at]())
    return times


def comparison(times: Times, chosen: int) -> dict[str, Any]:
    """How sure it is that a program is the fastest: rounds, certainty, and between which bounds the
    next one's time lies as a multiple of its own; nothing of one program alone."""
    others = [i for i in range(len(times)) if i != chosen]
    if not others:
        return {}
    found = ratios(times[_among(times, others)], times[chosen])
    if not found:
        return {}
    low, high = interval(found)
    return {"rounds": len(times[chosen]), "sure": round(certainty(found, 1.0), 4),
            "next": [round(low, 4), round(high, 4)]}  # fmt: skip
