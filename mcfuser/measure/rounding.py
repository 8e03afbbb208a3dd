"""The error that rounding may cause in each element of a chain's results.

This is a running error analysis, to first order. Each value has an error with it: the sum of the
magnitudes that were rounded to compute it, each times the derivative of the value by it. A check
allows an element to differ by a tolerance times that error. So an element that is small next to its
neighbours is checked as strictly as they are, and one that cancelled has the error of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from mcfuser.chain import BYTES, WHOLE, Chain, Operator, lowest, whole_range
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read
from mcfuser.space.reference import (
    Array,
    AxisRun,
    applied,
    as_dtype,
    bounded_product,
    contract,
    gather,
    in_runs,
    positions,
    span,
    sums_behind,
    typed,
)

NARROWEST = {"float16": 2.0**-24, "bfloat16": 0.0}
"""The smallest magnitudes of narrow types: smaller values become zero."""
WIDEST = {"float16": 65504.0, "bfloat16": 3.389e38, "float32": 3.402824e38, "float64": 3.402824e38}
"""The largest magnitudes: larger values may become infinite. Kernels compute in float32 at most."""
WHOLE_UP_TO = 2.0**24
"""The largest number of which float32 has all smaller whole numbers, too."""
HUGE = 2.0**127.5
"""An exponential above it may be infinite: as 2^n times a number around 1, n is 128 there."""


@dataclass(frozen=True)
class _Values:
    """A chain, its tensors' values, and their errors in multiples of `unit`."""

    chain: Chain
    values: dict[str, Array]
    errors: dict[str, Array]
    unit: float
    run: AxisRun | None = None
    """Where it is given, what is computed is so for these positions alone."""


def allowed(
    chain: Chain, inputs: Mapping[str, Array], results: Mapping[str, Array], unit: float
) -> dict[str, Array]:
    """For each operator's result, the error that each element may have, in multiples of `unit`.

    `unit` is the relative error of one rounding. `inputs` have the shapes that the chain gives
    them; `results` are those of the reference, of every operator.
    """
    values = typed(chain, inputs)
    known = _Values(chain, values, {n: np.zeros(()) for n in values}, unit)
    with np.errstate(all="ignore"):
        for o in chain.operators:
            values[o.out] = as_dtype(results[o.out], chain.tensor(o.out).dtype)
            known.errors[o.out] = _of_result(known, o)
    return {
        o.out: np.broadcast_to(known.errors[o.out], results[o.out].shape) for o in chain.operators
    }


def _of_result(known: _Values, o: Operator) -> Array:
    """The error of an operator's results as they are stored."""
    chain, dtype = known.chain, known.chain.tensor(o.out).dtype
    whole = dtype not in DISCRETE and BYTES[dtype] >= BYTES["float32"]
    whole = whole and _is_whole(chain, Read(o.out, ()))

    def stored(error: Array, value: Array) -> Array:
        if dtype not in DISCRETE:
            size = _stored(value, dtype, known.unit)
            error = error + (_rounded_beyond(value, size) if whole else size)
        return _defined(error, value)

    def some(run: AxisRun | None) -> Array:
        there = (span(chain, a, run) for a in o.axes)
        value = known.values[o.out][tuple(slice(s.start, s.stop) for s in there)]
        return stored(_one_by_one(replace(known, run=run), o), value)

    if (side := bounded_product(chain, o, known.values)) is not None:
        return stored(_product(known, o, side), known.values[o.out])
    return in_runs(chain, o, some)


def _defined(error: Array, value: Array) -> Array:
    """The errors without NaN, which zero times infinity gives: 0 where the value is 0, else
    infinite."""
    return np.where(np.isnan(error), np.where(value == 0, 0.0, np.inf), error)


def _stored(x: Array, dtype: str, unit: float) -> Array:
    """The error of storing values in a type."""
    error = np.abs(x) + NARROWEST.get(dtype, 0.0) / unit
    return np.where(np.abs(x) > WIDEST.get(dtype, math.inf), np.inf, error)


def _one_by_one(known: _Values, o: Operator) -> Array:
    """The error of an operator's results, from that of its body at each position."""
    chain, dtype = known.chain, known.chain.tensor(o.out).dtype
    shape = tuple(len(span(chain, a, known.run)) for a in o.related)
    value, error = (np.broadcast_to(x, shape) for x in _at(known, o, o.body))
    if dtype in DISCRETE:
        whole = _is_whole(chain, o.body)
        stepped = _step(value, error, dtype, known.unit, whole)
        value, error = (np.broadcast_to(x, shape) for x in stepped)
    inside = np.ones((), bool)
    if o.domain is not None:
        inside = as_dtype(_at(known, o, o.domain)[0], "bool")
    reduced = tuple(range(len(o.axes), len(shape)))
    if o.reduce == "none":
        return np.where(inside, error, 0.0)
    if o.reduce == "sum":
        each = error if dtype in WHOLE else error + np.abs(value)
        each = np.where(value == 0, np.where(np.isnan(error), 0.0, error), each)
        return np.asarray(np.where(inside, each, 0.0).sum(axis=reduced))
    bottom = float(lowest(dtype))
    value, error = np.where(inside, value, bottom), np.where(inside, error, 0.0)
    top = value.max(axis=reduced, keepdims=True)
    near = value + known.unit * error >= top - known.unit * np.where(value == top, error, 0.0).max(
        axis=reduced, keepdims=True
    )
    return np.asarray(np.where(near, error, 0.0).max(axis=reduced))


def _product(known: _Values, o: Operator, side: Read) -> Array:
    """The error of a matrix product: |A| times that of B, that of A times |B|, and |A| times
    |B|."""
    roles = o.product
    assert roles is not None
    a, b = roles.left.tensor, roles.right.tensor

    def part(left: Array, right: Array) -> Array:
        operands = known.values | {a: left, b: right}
        return contract(known.chain, o, roles, operands, side, _single)

    if not (known.errors[a].any() or known.errors[b].any()):
        return part(known.values[a], known.values[b])
    size = {n: _single(known.values[n]) for n in (a, b)}
    error = {n: _single(known.errors[n]) for n in (a, b)}
    if a == b:
        return part(size[a] + 2 * error[a], size[a] + 2 * error[a])
    total = part(size[a] + error[a] if error[a].any() else size[a], size[b])
    if not error[b].any():
        return total
    return total + part(size[a], np.broadcast_to(error[b], size[b].shape))


def _single(x: Array) -> Array:
    """Magnitudes in float32, which is precise enough for errors. Infinity and NaN become the
    largest number that can be squared."""
    magnitudes = x.astype(np.float32)
    np.abs(magnitudes, out=magnitudes)
    np.fmin(magnitudes, np.float32(1e18), out=magnitudes)
    return magnitudes


# --- expressions: values with their errors


def _at(known: _Values, o: Operator, e: Expr) -> tuple[Array, Array]:
    """An expression's value over an operator's iteration space, and its error in units."""
    nothing = np.zeros(())
    if isinstance(e, Const):
        return np.asarray(e.value), nothing
    if isinstance(e, Index):
        return positions(known.chain, e.axis, o.related, known.run), nothing
    if isinstance(e, Read):
        value = gather(known.chain, e, o.related, known.values, known.run)
        error = known.errors[e.tensor]
        if error.ndim:
            error = gather(known.chain, e, o.related, known.errors, known.run)
        return value, error
    if isinstance(e, Cast):
        value, error = _at(known, o, e.arg)
        if e.dtype in DISCRETE:
            return _step(value, error, e.dtype, known.unit, _is_whole(known.chain, e.arg))
        value = as_dtype(value, e.dtype)
        return value, error + _stored(value, e.dtype, known.unit)
    if not isinstance(e, Call):
        assert_never(e)
    args = [_at(known, o, a) for a in e.args]
    value = applied(e.op, [np.asarray(v) for v, _ in args])
    if e.op == "div" and sums_behind(known.chain, e.args[1]):
        value = np.where(args[0][0] == 0, 0.0, value)
    error = _error(known.chain, e, value, args, known.unit)
    return value, _defined(error, value)


def _step(x: Array, error: Array, dtype: str, unit: float, whole: bool) -> tuple[Array, Array]:
    """A value cast to an integer or to bool, and the error of that: 0, or that of a whole step
    where the argument's error might lead to another result. Of a `whole` number it is as before."""
    value = as_dtype(x, dtype)
    if whole and dtype != "bool":
        return value, error
    if dtype == "bool":
        doubt = (np.abs(x) <= unit * error) & (error > 0)
    else:
        low, high = np.trunc(x - unit * error), np.trunc(x + unit * error)
        doubt = low != high
    return value, np.where(doubt, (1.0 + unit * error) / unit, 0.0)


Pair = tuple[Array, Array]


def _error(chain: Chain, e: Call, value: Array, args: Sequence[Pair], unit: float) -> Array:
    """The error of an operation's result, given its arguments with their errors."""
    if e.op in ("lt", "le", "eq", "ne"):
        (a, da), (b, db) = args
        doubt = (np.abs(a - b * 1.0) <= unit * (da + db)) & (da + db > 0)
        return np.where(doubt, 1.0 / unit, 0.0)
    if e.op in ("floor", "round"):
        (a, da), *_ = args
        step = np.floor if e.op == "floor" else np.rint
        doubt = step(a - unit * da) != step(a + unit * da)
        return np.where(doubt, (1.0 + unit * da) / unit, 0.0)
    if e.op in ("shift_right", "bit_and"):
        (_, da), (_, db) = args
        return np.where(da + db > 0, np.inf, 0.0)  # any bit may be another one
    if e.op in ("and", "or", "not"):
        return np.asarray(sum(d for _, d in args), np.float64)
    if e.op == "select":
        (_, dc), (a, da), (b, db) = args
        chosen = np.where(as_dtype(args[0][0], "bool"), da, db)
        other = np.where(a * 1.0 == b, 0.0, np.abs(a * 1.0 - b)) / unit + da + db
        return np.where(dc > 0, other, chosen)
    whole = all(v.dtype.kind in "bi" for v, _ in args)
    if e.op in ("add", "sub", "mul", "neg", "abs", "max", "min") and whole:
        return np.asarray(_of_numbers(e.op, args, unit))
    rounded = _rounded(e.op, value, args)
    if e.op in ("add", "sub", "mul") and all(_is_whole(chain, x) for x in e.args):
        rounded = _rounded_beyond(value, rounded)
    return np.asarray(_of_numbers(e.op, args, unit) + rounded)


def _is_whole(chain: Chain, e: Expr) -> bool:
    """Whether a value of reals is always a whole number."""
    return whole_range(chain, e) is not None


def _rounded_beyond(value: Array, rounded: Any) -> Any:
    """The error of rounding whole numbers: none where float32 has all of them."""
    return np.where(np.abs(value) <= WHOLE_UP_TO, 0.0, rounded)


def _of_numbers(op: str, args: Sequence[Pair], unit: float) -> Any:
    """The part of a result's error that comes from its arguments, to first order.

    A product's is to second order: both factors may be smaller than their errors.
    """
    (a, da), (b, db) = (*args, args[0])[:2]
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    match op:
        case "add" | "sub":
            return da + db
        case "mul":
            return np.abs(a) * db + np.abs(b) * da + unit * da * db
        case "div":
            return (da + np.abs(a / b) * db) / np.abs(b)
        case "neg" | "abs" | "tanh" | "erf":
            return da
        case "max" | "min":
            return np.maximum(da, db)
        case "exp":
            return np.exp(a) * da
        case "exp2":
            return np.exp2(a) * da
        case "log":
            return da / np.abs(a)
        case "sqrt":
            return np.where(da > 0, da / (2 * np.sqrt(a)), 0.0)
        case "pow":
            size = np.float_power(np.abs(a), b)
            first = np.where(da > 0, np.abs(b) * size * da / np.abs(a), 0.0)
            return first + np.where(db > 0, size * np.abs(np.log(np.abs(a))) * db, 0.0)
        case _:
            raise KeyError(op)


def _rounded(op: str, value: Array, args: Sequence[Pair]) -> Any:
    """The part of a result's error that the operation itself adds.

    An exponential multiplies its argument by a constant, which is rounded as well. Some functions
    compute small results by way of larger values.
    """
    size = np.abs(np.asarray(value, np.float64))
    a = np.abs(np.asarray(args[0][0], np.float64))
    match op:
        case "add" | "sub":
            return a + np.abs(np.asarray(args[1][0], np.float64))
        case "exp" | "exp2":
            rounded = np.where(size == 0, 0.0, size * (1 + a))
            return np.where(size > HUGE, np.inf, rounded)
        case "pow":
            b = np.abs(np.asarray(args[1][0], np.float64))
            relative = np.where(size == 0, 0.0, b * np.abs(np.log(a)))
            return size * (1 + np.where(np.isnan(relative), 0.0, relative))
        case "tanh" | "erf" | "log":
            return size + 1
        case "max" | "min" | "neg" | "abs":
            return np.zeros(())
        case _:
            return size
