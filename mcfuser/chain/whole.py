"""Whole numbers: which values of a chain are, and between which bounds they lie.

Quantized models compute with bytes, less their zero points. That such values are whole, and small,
follows from the types of what is read, and from the bounds that numbers are clipped to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from mcfuser.chain.values import Chain
from mcfuser.expr import BOUNDS, CONDITIONS, DISCRETE, Call, Cast, Const, Expr, Index, Read

Interval = tuple[float, float]
"""The least and the largest number; either may be infinite."""
EVERY: Interval = (-math.inf, math.inf)
TRUTH: Interval = (0.0, 1.0)
_KEEPING = ("add", "sub", "mul", "neg", "abs", "max", "min")
"""What is whole of whole numbers."""


Judged = tuple[bool, Interval]
"""Whether a number is surely whole, and the bounds of the number."""
Leaf = Callable[[Read | Index], Interval | None]
"""The bounds of an element that is read, or of a position, that is a whole number."""


def whole_range(chain: Chain, e: Expr) -> Interval | None:
    """The bounds of a chain's value that is a whole number, or not a number; None where it may be
    another one. They hold of numbers of ordinary size: float32 has all whole numbers up to 2^24."""

    def leaf(node: Read | Index) -> Interval | None:
        if isinstance(node, Index):
            return 0.0, float(chain.size(node.axis) - 1)
        return _stored(chain, node.tensor)

    return whole_interval(e, leaf)


def whole_interval(e: Expr, leaf: Leaf) -> Interval | None:
    """The bounds of an expression that is a whole number; None where it may be another one."""
    whole, found = _judged(e, leaf)
    return found if whole else None


def number_bounds(e: Expr, leaf: Leaf) -> Interval:
    """The bounds of any number: those of whole ones, and those that others were clipped to."""
    return _judged(e, leaf)[1]


def _judged(e: Expr, leaf: Leaf) -> Judged:
    """Whether a number is whole, and its bounds, in one walk."""
    match e:
        case Const(value):
            return float(value).is_integer(), (float(value), float(value))
        case Index() | Read():
            found = leaf(e)
            return (False, EVERY) if found is None else (True, found)
        case Cast(arg, dtype):
            if dtype == "bool":
                return True, TRUTH
            whole, found = _judged(arg, leaf)
            if dtype in DISCRETE:
                return True, _steps(found)
            kept = whole and dtype in ("float32", "float64")
            return kept, found if kept else EVERY
        case Call(op, args):
            return _called(op, [_judged(a, leaf) for a in args])
        case _:
            assert_never(e)


def _stored(chain: Chain, name: str) -> Interval | None:
    """The bounds of a tensor's elements: those of its type, or of the map that computes them."""
    dtype = chain.tensor(name).dtype
    if dtype == "bool":
        return TRUTH
    if dtype in BOUNDS:
        low, high = BOUNDS[dtype]
        return float(low), float(high)
    if name in chain.inputs:
        return EVERY if dtype in DISCRETE else None
    made = chain.operator(name)
    if made.reduce != "none" or dtype not in (*DISCRETE, "float32", "float64"):
        return None
    found = whole_range(chain, Cast(made.body, dtype))
    if found is not None and made.domain is not None:
        return min(found[0], 0.0), max(found[1], 0.0)
    return found


def _called(op: str, args: Sequence[Judged]) -> Judged:
    """What is known of a function's result, given its arguments."""
    if op in CONDITIONS:
        return True, TRUTH
    if op in ("floor", "round"):
        return True, _steps(args[0][1])
    if op in ("shift_right", "bit_and"):
        return True, _of_bits(op, [found if whole else EVERY for whole, found in args])
    values = args[1:] if op == "select" else args
    whole, found = all(w for w, _ in values), [x for _, x in values]
    if op == "select" and whole:
        return True, (min(x for x, _ in found), max(x for _, x in found))
    if op in ("max", "min") or (op in _KEEPING and whole):
        return whole, _arithmetic(op, found)
    return False, EVERY


def _steps(found: Interval) -> Interval:
    """The bounds of a number that is rounded to a whole one, in whatever direction."""
    low, high = found
    return (
        math.floor(low) if math.isfinite(low) else low,
        math.ceil(high) if math.isfinite(high) else high,
    )


def _of_bits(op: str, args: Sequence[Interval]) -> Interval:
    """Bits of a number that is not negative are no more than it; a negative one that is shifted
    comes to -1."""
    (low, high), (least_shift, _) = args
    if op == "bit_and":
        bounds = [m for least, m in args if least >= 0]
        return (0.0, min(bounds)) if bounds else EVERY
    if least_shift < 0:
        return EVERY
    return min(low, 0.0), max(high, 0.0)


def _arithmetic(op: str, args: Sequence[Interval]) -> Interval:
    (a, b), (c, d) = (*args, args[0])[:2]
    match op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            ends = [0.0 if 0.0 in (x, y) else x * y for x in (a, b) for y in (c, d)]
            return min(ends), max(ends)
        case "neg":
            return -b, -a
        case "abs":
            return max(a, -b, 0.0), max(-a, b)
        case "max":
            return max(a, c), max(b, d)
        case "min":
            return min(a, c), min(b, d)
        case _:
            raise KeyError(op)


def narrow_type(found: Interval | None) -> str | None:
    """The smallest integer type of one or two bytes that has all numbers of an interval."""
    if found is None:
        return None
    fitting = (t for t, (low, high) in BOUNDS.items() if low <= found[0] and found[1] <= high)
    return next(fitting, None)
