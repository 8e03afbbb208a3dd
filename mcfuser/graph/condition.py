"""Constant masks that are conditions on positions: causal, windowed, of any offset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcfuser.expr import Call, Const, Expr, Index, call

MASKED = -1e4
"""A number from which on an addend hides a score: its exponential is zero beside any that is not
hidden. Exporters write this number, the type's lowest one, or minus infinity."""


def condition(mask: NDArray[np.generic], rows: str, columns: str) -> Expr | None:
    """The condition on the axes `rows` and `columns` under which an element of a mask [rows,
    columns] hides nothing.

    A boolean mask hides where it is false, any other one hides nothing where it is zero. It is None
    where the mask has other values, hides a row throughout, or no row's columns are those from
    `row + a` to `row + b` with constants a and b.
    """
    if mask.dtype == np.bool_:
        seen = np.asarray(mask)
    else:
        seen = np.asarray(mask == 0)
        if not (seen | (np.asarray(mask, np.float64) <= MASKED)).all():
            return None
    if seen.all() or not seen.any(axis=1).all():
        return None
    height, width = seen.shape
    first, last = seen.argmax(axis=1), width - 1 - seen[:, ::-1].argmax(axis=1)
    if (last - first + 1 != seen.sum(axis=1)).any():
        return None  # a row's columns are no interval
    at = np.arange(height)
    low, high = _shift(first - at, first > 0), _shift(last - at, last < width - 1)
    lows = np.zeros(height, int) if low is None else np.maximum(at + low, 0)
    highs = np.full(height, width - 1) if high is None else np.minimum(at + high, width - 1)
    if (lows != first).any() or (highs != last).any():
        return None
    limits = []
    if high is not None:
        limits.append(Call("le", (Index(columns), _plus(Index(rows), high))))
    if low is not None:
        limits.append(Call("lt", (Index(rows), _plus(Index(columns), 1 - low))))
    return limits[0] if len(limits) == 1 else Call("and", tuple(limits))


def _shift(distance: NDArray[np.int64], bounded: NDArray[np.bool_]) -> int | None:
    """The constant distance of the rows that are `bounded`; None where there is no such row."""
    return int(distance[bounded][0]) if bounded.any() else None


def _plus(e: Expr, number: int) -> Expr:
    return call("add", e, Const(number)) if number else e
