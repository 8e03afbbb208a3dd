"""The plain meaning of a chain: every operator over whole tensors, none of it shared with what runs
a schedule.

Reals are float64, whole numbers int64, conditions bools. A cast to a whole number truncates, one to
bool compares with zero; one to a float type says a precision, and changes no value here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import (
    WHOLE,
    Chain,
    Digit,
    Operator,
    Padding,
    Product,
    digits,
    lowest,
)
from mcfuser.expr import BOUNDS, NARROW, Call, Cast, Const, Expr, Index, Read, axes, reads

Array = NDArray[Any]

AxisRun = tuple[str, range]
"""Some positions of an axis. What is computed for a run is so for all positions of other axes."""

CACHED = 1 << 16
"""Positions of an operator that are computed at a time: what it computes on the way fits a
cache."""
BLOCK = 1 << 20
"""Elements of an operand that are multiplied at a time: the copies of several fit a cache."""

_REAL: Mapping[str, Callable[[Any], Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip


def value(e: Expr, read: Callable[[Read], Any], index: Callable[[str], Any]) -> Any:
    """The value of an expression, given those of its reads and axes; broadcasts as numpy does."""
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Index):
        return index(e.axis)
    if isinstance(e, Read):
        return read(e)
    if isinstance(e, Cast):
        return as_dtype(value(e.arg, read, index), e.dtype)
    if isinstance(e, Call):
        return applied(e.op, [np.asarray(value(a, read, index)) for a in e.args])
    assert_never(e)


def as_dtype(x: Any, dtype: str) -> Array:
    """Values as a result of that dtype holds them, but for the precision of reals."""
    array = np.asarray(x)
    if dtype == "bool":
        return np.asarray(np.not_equal(array, 0))
    if dtype in NARROW:
        return np.asarray(np.trunc(np.clip(array, *BOUNDS[dtype])), np.int64)
    if dtype in WHOLE:
        return np.asarray(np.trunc(array), np.int64)
    return np.asarray(array, np.float64)


def encode(values: Array, dtype: str) -> Array:
    """Values as a type stores them; bfloat16, which numpy lacks, as uint16, rounded to nearest
    even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def decode(stored: Array, dtype: str) -> Array:
    """The values of an array that `encode` made; others as they are."""
    if dtype != "bfloat16" or stored.dtype != np.uint16:
        return stored
    return (stored.astype(np.uint32) << 16).view(np.float32)


def applied(op: str, args: Sequence[Array]) -> Array:
    """An operator of the expression language, element by element."""
    if op == "select":
        return np.where(args[0] != 0, _number(args[1]), _number(args[2]))
    if op in ("and", "or", "not"):
        held = [np.not_equal(a, 0) for a in args]
        if op == "not":
            return np.asarray(np.logical_not(held[0]))
        return np.asarray((np.logical_and if op == "and" else np.logical_or)(*held))
    x, *rest = (_number(a) for a in args)
    if op in _REAL:
        return np.asarray(_REAL[op](x.astype(np.float64)))
    if not rest:
        return _of_one(op, x)
    return _of_two(op, x, rest[0])


def _number(x: Array) -> Array:
    """A condition counts as 0 or 1."""
    return x.astype(np.int64) if x.dtype == np.bool_ else x


def _of_one(op: str, x: Array) -> Array:
    match op:
        case "neg":
            return -x
        case "abs":
            return np.abs(x)
        case "floor":
            return x if x.dtype == np.int64 else np.floor(x)
        case "round":
            return x if x.dtype == np.int64 else np.rint(x)
        case _:
            raise KeyError(op)


def _of_two(op: str, x: Array, y: Array) -> Array:
    match op:
        case "add":
            return np.asarray(x + y)
        case "sub":
            return np.asarray(x - y)
        case "mul":
            return np.asarray(x * y)
        case "div":
            return np.asarray(np.true_divide(x, y))
        case "pow":
            return np.asarray(np.float_power(x, y))
        case "max":
            return np.asarray(np.maximum(x, y))
        case "min":
            return np.asarray(np.minimum(x, y))
        case "lt":
            return np.asarray(x < y)
        case "le":
            return np.asarray(x <= y)
        case "eq":
            return np.asarray(x == y)
        case "ne":
            return np.asarray(x != y)
        case "shift_right":
            return np.asarray(np.right_shift(x.astype(np.int64), y.astype(np.int64)))
        case "bit_and":
            return np.asarray(np.bitwise_and(x.astype(np.int64), y.astype(np.int64)))
        case _:
            raise KeyError(op)


def logical(chain: Chain, name: str, array: Array) -> Array:
    """The tensor as the chain indexes it: a view of the array that has its strides and offset; a
    copy where a dimension runs along several of the array, or has padding."""
    tensor = chain.tensor(name)
    if tensor.strides is None:
        return array.ravel()[tensor.offset :][: math.prod(chain.shape(name))].reshape(
            chain.shape(name)
        )
    flat, shape = array.ravel()[tensor.offset :], chain.shape(name)
    along = [d for s, n in zip(tensor.strides, shape, strict=True) for d in digits(s, n)]
    if tensor.padding:
        number = encode(np.asarray(tensor.padding[0].value), tensor.dtype)
        if flat.dtype != np.uint16:  # as `encode` writes bfloat16
            number = decode(number, tensor.dtype)
        return _padded(flat, along, tensor.padding, number).reshape(shape)
    extents, strides = [d.extent for d in along], [d.stride * flat.itemsize for d in along]
    return np.lib.stride_tricks.as_strided(flat, extents, strides).reshape(shape)


def _padded(
    flat: Array, along: Sequence[Digit], padding: Sequence[Padding], number: Array
) -> Array:
    """The elements at all positions of these digits, a number where the array has none: a view of
    a copy that has the padding around it. Elements are read many times where windows overlap."""
    fixed = [d for d in along if d.padding is None]
    spans = [_span(along, i, p) for i, p in enumerate(padding)]
    there = [range(max(s.start, 0), min(s.stop, p.extent))
             for s, p in zip(spans, padding, strict=True)]  # fmt: skip
    shape = [*map(len, spans), *(d.extent for d in fixed)]
    whole = np.full(shape, number.astype(flat.dtype))
    if all(map(len, there)):
        inside = tuple(slice(t.start - s.start, t.stop - s.start)
                       for t, s in zip(there, spans, strict=True))  # fmt: skip
        strides = [p.stride for p in padding] + [d.stride for d in fixed]
        first = sum(t.start * p.stride for t, p in zip(there, padding, strict=True))
        whole[inside] = np.lib.stride_tricks.as_strided(
            flat[first:], whole[inside].shape, [s * flat.itemsize for s in strides]
        )
    others = iter(whole.strides[len(padding) :])
    steps = [
        next(others)
        if d.padding is None
        else d.stride // padding[d.padding].stride * whole.strides[d.padding]
        for d in along
    ]
    origin = tuple(slice(-p.before - s.start, None) for s, p in zip(spans, padding, strict=True))
    return np.lib.stride_tricks.as_strided(whole[origin], [d.extent for d in along], steps)


def _span(along: Sequence[Digit], number: int, padding: Padding) -> range:
    """The positions along a padded dimension that the digits reach, with those between them."""
    ends = [(d.extent - 1) * (d.stride // padding.stride) for d in along if d.padding == number]
    low, high = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)
    return range(low - padding.before, high - padding.before + 1)


def evaluate(chain: Chain, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every operator's result, float64, from the chain's inputs as the chain indexes them.

    A quotient whose divisor reads a sum of the chain, directly or through maps, is 0 where its
    numerator is.
    """
    known = typed(chain, inputs)
    with np.errstate(all="ignore"):
        for operator in chain.operators:
            known[operator.out] = _run(chain, operator, known)
    return {o.out: np.asarray(known[o.out], np.float64) for o in chain.operators}


def typed(chain: Chain, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs as the reference computes with them."""
    return {n: as_dtype(inputs[n], chain.tensor(n).dtype) for n in chain.inputs}


def sums_behind(chain: Chain, e: Expr) -> bool:
    """The expression reads a sum of the chain, directly or through maps."""
    for r in reads(e):
        if r.tensor in chain.inputs:
            continue
        source = chain.operator(r.tensor)
        if source.reduce == "sum":
            return True
        behind = (source.body, source.domain) if source.reduce == "none" else ()
        if any(sums_behind(chain, x) for x in behind if x is not None):
            return True
    return False


def _run(chain: Chain, o: Operator, known: Mapping[str, Array]) -> Array:
    if (side := bounded_product(chain, o, known)) is not None:
        roles = o.product
        assert roles is not None
        return contract(chain, o, roles, known, side)
    return in_runs(chain, o, lambda run: _one_by_one(chain, o, known, run))


def _one_by_one(
    chain: Chain, o: Operator, known: Mapping[str, Array], run: AxisRun | None
) -> Array:
    """The result of an operator, or of a run, from its body at each position."""
    dtype = chain.tensor(o.out).dtype
    shape = tuple(len(span(chain, a, run)) for a in o.related)
    body = np.broadcast_to(as_dtype(_over(chain, o, known, o.body, run), dtype), shape)
    if o.domain is not None:
        outside = lowest(dtype) if o.reduce == "max" else 0
        inside = as_dtype(_over(chain, o, known, o.domain, run), "bool")
        body = np.where(inside, body, np.asarray(outside).astype(body.dtype))
    reduced = tuple(range(len(o.axes), len(shape)))
    if o.reduce == "none":
        return np.array(body)
    if o.reduce == "sum":
        return np.asarray(body.sum(axis=reduced))
    return np.asarray(np.maximum(body.max(axis=reduced), np.asarray(lowest(dtype), body.dtype)))


def in_runs(chain: Chain, o: Operator, compute: Callable[[AxisRun | None], Array]) -> Array:
    """What is computed for an operator's results, in runs along the longest of their axes, side by
    side; at once where it is little (without a run)."""
    total = math.prod(chain.size(a) for a in o.related)
    longest = max(o.axes, key=chain.size, default=None)
    if longest is None or total <= 2 * CACHED:
        return compute(None)
    extent = chain.size(longest)
    step = max(1, extent * CACHED // total)
    runs = [(longest, range(at, min(at + step, extent))) for at in range(0, extent, step)]

    def quietly(run: AxisRun) -> Array:
        with np.errstate(all="ignore"):  # each thread has a state of its own
            return compute(run)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(quietly, runs)), o.axes.index(longest))


def span(chain: Chain, a: str, run: AxisRun | None) -> range:
    """The positions of an axis: those of the run, if it is one of them."""
    return run[1] if run is not None and run[0] == a else range(chain.size(a))


def bounded_product(chain: Chain, o: Operator, known: Mapping[str, Array]) -> Read | None:
    """The operand that the domain masks, of a matrix product of reals whose other operand may be
    multiplied by zero; None where the operator is no such product."""
    roles = o.product
    if roles is None or chain.tensor(o.out).dtype in WHOLE:
        return None
    side = _masked_side(o, roles)
    if side is None or o.domain is None:
        return side
    other = roles.right if side == roles.left else roles.left
    return side if np.isfinite(known[other.tensor]).all() else None


def _over(
    chain: Chain, o: Operator, known: Mapping[str, Array], e: Expr, run: AxisRun | None = None
) -> Any:
    """An expression over an operator's iteration space."""
    if isinstance(e, Cast):
        return as_dtype(_over(chain, o, known, e.arg, run), e.dtype)
    if isinstance(e, Call):
        args = [np.asarray(_over(chain, o, known, a, run)) for a in e.args]
        values = applied(e.op, args)
        if e.op == "div" and sums_behind(chain, e.args[1]):
            return np.where(args[0] == 0, 0.0, values)
        return values
    return value(
        e,
        lambda r: gather(chain, r, o.related, known, run),
        lambda a: positions(chain, a, o.related, run),
    )


def _masked_side(o: Operator, roles: Product) -> Read | None:
    """The operand of a product that its domain can mask: one that has all of the domain's axes."""
    over = set(axes(o.domain)) if o.domain is not None else set()
    return next((r for r in (roles.left, roles.right) if over <= set(axes(r))), None)


def _real(x: Array) -> Array:
    """In float64, but for what is float32 here."""
    return x if x.dtype == np.float32 else x.astype(np.float64, copy=False)


def contract(
    chain: Chain,
    o: Operator,
    roles: Product,
    known: Mapping[str, Array],
    side: Read,
    form: Callable[[Array], Array] = _real,
) -> Array:
    """A product of two matrices for each batch position: einsum takes no BLAS for batches. The
    domain masks one `side`. Operands are brought into the `form` in which they are multiplied.

    The larger operand is taken in parts of BLOCK elements: where windows overlap, it is many times
    as large as its tensor, and to write it to new memory takes longer than the product.
    """

    def operand(r: Read, order: Sequence[str]) -> Array:
        full = gather(chain, r, o.related, known)
        if o.domain is not None and r == side:
            full = np.where(np.asarray(_over(chain, o, known, o.domain)) != 0, full, 0.0)
        places = [o.related.index(a) for a in order]
        places += [i for i in range(full.ndim) if i not in places]
        return full.transpose(places).reshape([chain.size(a) for a in order])

    def matrices(part: Array, *ends: int) -> Array:
        """The operand with the dimensions before, between and behind these ends as one each."""
        shape = part.shape
        groups = shape[: ends[0]], shape[ends[0] : ends[1]], shape[ends[1] :]
        return form(part.reshape([math.prod(g) for g in groups]))

    tall = (*roles.batch, *roles.rows, *roles.depth)
    wide = (*roles.batch, *roles.depth, *roles.columns)
    found = (*roles.batch, *roles.rows, *roles.columns)
    left, right = operand(roles.left, tall), operand(roles.right, wide)
    split = len(roles.batch), len(roles.batch) + len(roles.rows)
    other = len(roles.batch), len(roles.batch) + len(roles.depth)
    by_rows = left.size >= right.size
    cut = max(roles.rows if by_rows else roles.columns, key=chain.size, default=None)
    if by_rows:
        second = matrices(right, *other)
        parts = [matrices(p, *split) @ second for p in _parts(left, tall, cut)]
    else:
        first = matrices(left, *split)
        parts = [first @ matrices(p, *other) for p in _parts(right, wide, cut)]
    shaped = [p.reshape([-1 if a == cut else chain.size(a) for a in found]) for p in parts]
    if cut is None or len(shaped) == 1:
        (result,) = shaped
    else:
        result = np.concatenate(shaped, found.index(cut))
    return np.ascontiguousarray(result.transpose([found.index(a) for a in o.axes]))


def _parts(array: Array, names: Sequence[str], cut: str | None) -> list[Array]:
    """Views of an array, cut along one of its named dimensions into parts of about BLOCK
    elements."""
    if cut is None or array.size <= BLOCK:
        return [array]
    return np.array_split(array, min(array.shape[names.index(cut)], -(-array.size // BLOCK)),
                          names.index(cut))  # fmt: skip


def gather(
    chain: Chain,
    r: Read,
    space: Sequence[str],
    known: Mapping[str, Array],
    run: AxisRun | None = None,
) -> Array:
    """A read over an iteration space: extent 1 along the axes that it does not depend on. A view of
    the tensor where it is read at axes as they are, each in a dimension of its own."""
    names = [i.plain for i in r.indices]
    if names and None not in names and len({*names}) == len(names):
        there = {a: span(chain, a, run) for a in names if a is not None}
        part = known[r.tensor][tuple(slice(s.start, s.stop) for s in there.values())]
        order = sorted(range(len(names)), key=lambda i: space.index(names[i] or ""))
        shape = [len(there[a]) if a in there else 1 for a in space]
        return np.asarray(part.transpose(order).reshape(shape))
    at = tuple(
        sum(
            (c * positions(chain, a, space, run) for a, c in i.terms),
            np.full((1,) * len(space), i.offset),
        )
        for i in r.indices
    )
    gathered: Array = known[r.tensor][at] if at else known[r.tensor].reshape((1,) * len(space))
    return gathered


def positions(chain: Chain, a: str, space: Sequence[str], run: AxisRun | None = None) -> Array:
    """The positions of an axis, along its dimension of an iteration space."""
    there = span(chain, a, run)
    shape = [1] * len(space)
    shape[space.index(a)] = len(there)
    return np.arange(there.start, there.stop).reshape(shape)
