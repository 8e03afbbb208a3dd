"""Which buckets a model with run-time extents has: those whose padding costs least on average.

What padding costs at a shape is the predicted time of its bucket as a multiple of the shape's own:
so short shapes, which are soon computed, count as much as long ones. Every extent of a range is
taken to be as likely as any other. The time of a model is taken to be a product of functions, one
of each run-time extent, each a parabola through three predictions, so the extents' cuts are chosen
one by one, exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcfuser.errors import ModelError
from mcfuser.graph.dynamic.axes import Point, RuntimeExtent

_MOST = 64
"""Candidates for the cuts of one extent."""
_SHORT, _ALIGNED = 16, 8
"""Ranges of fewer extents may be cut anywhere, longer ones at multiples of a power of two, and at
least of so many, which tiles divide."""
_LEAST = 1e-6
"""No run takes less than this part of the longest, whatever is predicted for it."""
WORTH = 1.03
"""Fewer buckets are taken where padding costs at most so many times the least."""

_Parts = tuple[float, tuple[int, ...]]
"""What padding costs with some parts of a range, and where they end."""
Cost = Callable[[Point], float]
"""The seconds that are predicted for the model at some extents."""


@dataclass(frozen=True, slots=True)
class Box:
    """The extents of one bucket: from `low` to `high`, both included."""

    low: Point
    high: Point


@dataclass(frozen=True, slots=True)
class ChosenBuckets:
    """The buckets, smaller ones first, and how many times as long a run takes as without padding,
    on average, with them and with one bucket alone; None where nothing was predicted."""

    boxes: tuple[Box, ...]
    padded: float | None = None
    alone: float | None = None


def choose(extents: Sequence[RuntimeExtent], cost: Cost, most: int) -> ChosenBuckets:
    """The buckets, `most` of them at most; nothing is predicted where that is one."""
    high = {e.name: e.high for e in extents}
    if most == 1:
        return ChosenBuckets((Box({e.name: e.low for e in extents}, high),))
    whole = cost(high)
    curves = [_curve(e, high, whole, cost) for e in extents]
    plans = [_cuts(e, curve, most) for e, curve in zip(extents, curves, strict=True)]
    counts = [c for c in itertools.product(*map(sorted, plans)) if math.prod(c) <= most]
    expected = {c: math.prod(plan[k][0] for plan, k in zip(plans, c, strict=True)) for c in counts}
    least = min(expected.values())
    chosen = min(
        (c for c in counts if expected[c] <= WORTH * least),
        key=lambda c: (math.prod(c), expected[c]),
    )
    cuts = [plan[k][1] for plan, k in zip(plans, chosen, strict=True)]
    alone = expected[(1,) * len(extents)]
    return ChosenBuckets(_boxes(extents, cuts), expected[chosen], alone)


def given_buckets(extents: Sequence[RuntimeExtent], boxes: Sequence[Box]) -> ChosenBuckets:
    """The buckets that were chosen before. Raises ModelError where they are none of these
    extents'."""
    cuts = [sorted({b.high.get(e.name, 0) for b in boxes}) for e in extents]
    ends = {e.name: e.high for e in extents}
    fits = len(boxes) == math.prod(map(len, cuts)) > 0
    made = _boxes(extents, cuts) if fits else ()
    if not made or made[-1].high != ends or not _equal(made, boxes):
        told = ", ".join(f"{e.name} {e.low}..{e.high}" for e in extents)
        raise ModelError(f"the buckets that are given do not divide the ranges {told}")
    return ChosenBuckets(made)


def _equal(some: Sequence[Box], others: Sequence[Box]) -> bool:
    """Whether the boxes are the same, in any order."""
    return len(some) == len(others) and all(box in others for box in some)


def _curve(
    extent: RuntimeExtent, high: Mapping[str, int], whole: float, cost: Cost
) -> Callable[[int], float]:
    """The predicted time along one extent, relative to that at its highest; the same everywhere
    where nothing is predicted for the highest, as of a model without chains."""
    if not whole:
        return lambda n: 1.0
    middle = (extent.low + extent.high) // 2
    at = sorted({extent.low, middle, extent.high})
    times = [(whole if n == extent.high else cost({**high, extent.name: n})) / whole for n in at]
    coefficients = np.polyfit(at, times, len(at) - 1)
    least = max(_LEAST, min(times))
    return lambda n: max(least, float(np.polyval(coefficients, n)))


def candidates(extent: RuntimeExtent) -> list[int]:
    """The extents at which a bucket may end: all of a short range; of a long one its ends, and
    multiples of a power of two."""
    width = extent.high - extent.low
    step = 1 if width < _SHORT else _ALIGNED
    while width // step >= _MOST:
        step *= 2
    first = -(-extent.low // step) * step
    return sorted({extent.low, *range(first, extent.high, step), extent.high})


def _cuts(extent: RuntimeExtent, curve: Callable[[int], float], most: int) -> dict[int, _Parts]:
    """The least that padding costs with at most so many parts of a range, and where they end, for
    each number of parts up to `most`.

    Dynamic programming over the candidates: the best parts up to each of them.
    """
    ends = candidates(extent)
    width = extent.high - extent.low + 1
    curves = [curve(n) for n in range(extent.low, extent.high + 1)]
    shares = np.cumsum(1 / np.asarray(curves)) / width
    times = [curves[n - extent.low] for n in ends]
    below = [float(shares[n - extent.low]) for n in ends]
    best: list[dict[int, _Parts]] = []
    for i, end in enumerate(ends):
        of: dict[int, _Parts] = {}
        for parts in range(1, most + 1):
            options: list[_Parts] = [(times[i] * below[i], (end,))]
            for j in range(i):
                if parts - 1 in best[j]:
                    before, cuts = best[j][parts - 1]
                    options.append((before + times[i] * (below[i] - below[j]), (*cuts, end)))
            of[parts] = min(options)
        best.append(of)
    return best[-1]


def _boxes(extents: Sequence[RuntimeExtent], cuts: Sequence[Sequence[int]]) -> tuple[Box, ...]:
    """Every combination of the extents' parts; one that holds another comes after it."""
    parts = [
        list(zip((e.low, *(c + 1 for c in ends[:-1])), ends, strict=True))
        for e, ends in zip(extents, cuts, strict=True)
    ]
    names = [e.name for e in extents]
    boxes = [
        Box(
            {n: low for n, (low, _) in zip(names, chosen, strict=True)},
            {n: high for n, (_, high) in zip(names, chosen, strict=True)},
        )
        for chosen in itertools.product(*parts)
    ]
    return tuple(sorted(boxes, key=lambda b: math.prod(b.high.values())))
