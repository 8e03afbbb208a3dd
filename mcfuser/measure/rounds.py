"""Interleaved timings of several programs, and how sure a comparison of them is.

In every round each program is timed once, so that drift and other load affect all programs of a
round alike. Two programs are compared by the ratio of their times within each round. The certainty
of a comparison comes from a sign test: it counts rounds, so a few interrupted ones weigh no more
than others, and it assumes nothing about the distribution of the times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARGIN = 0.98
"""A cover with fewer kernels must take at most this share of the time of the one with the most: a
smaller gain cannot be told from noise."""
CONFIDENT = 0.98
"""The certainty (`certainty`) from which on a choice counts as sure."""
EQUAL = 1.02
"""Programs whose times differ by less than this factor count as equally fast."""

BLOCKS = 7
"""The largest number of comparisons that rounds are grouped into; with fewer than this, none could
be CONFIDENT."""

SPARE = 0.5
"""Seconds before a deadline from which on no round is begun, except the first ones."""

Times = Sequence[Sequence[float]]
"""Seconds of each program in each round: [program][round]."""


@dataclass(frozen=True, slots=True)
class Interleaved:
    """The times of several programs that were timed together.

    `seconds` has the median of each program, infinity where it failed; `rounds` [program][round]
    has the seconds of which it is the median, and `conditions` the state of the device meanwhile.
    There are no rounds where the seconds are predicted, or come from separate searches.
    """

    seconds: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def ratios(self, slow: int, fast: int) -> list[float]:
        """The time of one program as a multiple of another's, for each comparison; none without
        rounds."""
        if not self.rounds:
            return []
        return ratios(self.rounds[slow], self.rounds[fast])


def quietest(times: Sequence[float]) -> list[float]:
    """The smallest time of each of about BLOCKS groups of neighbouring rounds.

    Other load makes some rounds longer and none shorter, so the smallest ones have least of it.
    """
    size = max(1, len(times) // BLOCKS)
    return [min(times[i : i + size]) for i in range(0, len(times) - size + 1, size)]


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """The times of one program divided by another's, in the same groups of rounds (`quietest`)."""
    count = min(len(slow), len(fast))
    both = zip(quietest(slow[:count]), quietest(fast[:count]), strict=True)
    return [a / b for a, b in both if b > 0]


def certainty(values: Sequence[float], limit: float) -> float:
    """How sure it is, from 0 to 1, that ratios lie above a limit (a one-sided sign test).

    It is the probability that as many tosses of a fair coin show fewer heads than there are ratios
    above the limit; at most 0.5 where the ratios show nothing.
    """
    above, count = sum(r > limit for r in values), len(values)
    return 1.0 - sum(math.comb(count, k) for k in range(above, count + 1)) / (1 << count)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bounds of the ratios' median, with CONFIDENT as the certainty; the smallest and the
    largest ratio where there are too few of them for that."""
    ordered, count = sorted(values), len(values)
    tail, cut = 1 / 2**count, 0
    while tail + math.comb(count, cut + 1) / 2**count <= (1 - CONFIDENT) / 2:
        cut += 1
        tail += math.comb(count, cut) / 2**count
    return ordered[cut], ordered[count - 1 - cut]


def fastest(times: Times) -> int:
    """The number of the fastest program: its share of the rounds' times has the smallest median."""
    least = min(len(t) for t in times)
    quiet = [quietest(t[:least]) for t in times]
    means = [statistics.fmean(r) for r in zip(*quiet, strict=True)]
    shares = [statistics.median(t / m for t, m in zip(p, means, strict=True)) for p in quiet]
    return min(range(len(times)), key=lambda i: shares[i])


def is_decided(times: Times, baseline: int | None) -> bool:
    """Whether it is sure which program is chosen, so that no more rounds are needed.

    With a `baseline`, the question is whether the best of the other programs is faster than that by
    more than MARGIN. Without one it is which program is the fastest, or as fast as the fastest.
    """
    if len(times) < 2:
        return True
    best = fastest(times)
    if baseline is not None:
        best = _fastest_of(times, [i for i in range(len(times)) if i != baseline])
        sure = certainty(ratios(times[baseline], times[best]), 1 / MARGIN)
        slower = certainty([1 / r for r in ratios(times[baseline], times[best])], MARGIN)
        return max(sure, slower) >= CONFIDENT
    for other in (i for i in range(len(times)) if i != best):
        compared = ratios(times[other], times[best])
        low, high = interval(compared)
        if certainty(compared, 1.0) < CONFIDENT and not (low > 1 / EQUAL and high < EQUAL):
            return False
    return True


def _fastest_of(times: Times, some: Sequence[int]) -> int:
    return some[fastest([times[i] for i in some])]


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """How many rounds are timed: at least `least`, then until the choice is sure (`is_decided`).

    There are at most `most` rounds, and none begins after `end` on the clock.
    """

    least: int
    most: int
    end: float
    baseline: int | None = None


def round_limits(
    least: int, most: int, seconds: float, until: float | None, baseline: int | None, now: float
) -> RoundLimits:
    """The limits of rounds that begin `now` and may take `seconds`.

    They end SPARE seconds before the deadline `until`, if there is one.
    """
    end = now + seconds
    return RoundLimits(least, most, end if until is None else min(end, until - SPARE), baseline)


def time_interleaved(
    runs: Sequence[Callable[[], float]], bounds: RoundLimits, clock: Callable[[], float]
) -> list[list[float]]:
    """The seconds that each of `runs` returns, [run][round]. In every round another run is
    first."""
    times: list[list[float]] = [[] for _ in runs]
    for done in range(bounds.most):
        if done >= bounds.least:
            # looks at 1, 2, 4.. times `least`: each look is another chance to seem sure by luck
            look = done % bounds.least == 0 and (done // bounds.least).bit_count() == 1
            if clock() >= bounds.end or (look and is_decided(times, bounds.baseline)):
                break
        for i in range(len(runs)):
            at = (i + done) % len(runs)
            times[at].append(runs[at]())
    return times


def comparison(times: Times, chosen: int) -> dict[str, Any]:
    """How sure it is that the program `chosen` is the fastest, for the report.

    `rounds` is their number, `sure` the certainty, and `next` the bounds of the next best program's
    time as a multiple of the chosen one's. It is empty for a single program.
    """
    others = [i for i in range(len(times)) if i != chosen]
    if not others:
        return {}
    compared = ratios(times[_fastest_of(times, others)], times[chosen])
    if not compared:
        return {}
    low, high = interval(compared)
    return {
        "rounds": len(times[chosen]),
        "sure": round(certainty(compared, 1.0), 4),
        "next": [round(low, 4), round(high, 4)],
    }
