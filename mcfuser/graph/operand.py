"""What an operator of a chain reads: values that the chain computes, inputs, numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import relax, tirx

from mcfuser.chain import Interval
from mcfuser.expr import BOUNDS, NARROW, Call, Cast, Const, Expr, Index, Read, uncast
from mcfuser.graph.attempt import (
    Attempt,
    ChainValue,
    filled_number,
    followed_views,
    input_tensor,
    stored_tensor,
)
from mcfuser.graph.condition import condition
from mcfuser.graph.dataflow import FLOATS, array, dtype, shape, size
from mcfuser.graph.draft import DraftInput, laid_out, position
from mcfuser.graph.scalar import nodes, simplify
from mcfuser.graph.views import Along, LaidOutValue, Unliftable, broadcast

_MORE = "FGHL"  # names of operands that have no role in a product
_LARGEST = 60  # nodes of a body, beyond which an operand becomes a tensor of its own


def operand(s: Attempt, a: relax.Expr, along: Along) -> Expr:
    """An element of an operand, as an expression; `along` are the axes along the dimensions of the
    result. Raises Unliftable where the operand's type is not one that chains have."""
    if isinstance(a, (tirx.IntImm, tirx.FloatImm)):
        return Const(float(a.value))
    if a in s.values:
        seen = s.values[a].plain
        if nodes(seen.expr) > _LARGEST and dtype(a) != "bool":
            s.values[a] = seen = replace(seen, expr=Read(stored_tensor(s, seen, "Y"), ()))
        return seen.expr
    filled = filled_number(a)
    if filled is not None:
        return Const(filled)
    if dtype(a) not in (*FLOATS, *NARROW, "bool"):
        raise Unliftable(f"an operand between its products has dtype {dtype(a)}")
    extents = shape(a)
    view = followed_views(
        s, LaidOutValue(a, broadcast(along[len(along) - len(extents) :], extents))
    )
    order = tuple(x for axes in along for x, _ in axes if x in view.layout)
    read = Read(input_tensor(s, view, order, _MORE), ())
    return Cast(read, "float32") if dtype(a) in FLOATS[1:] else read


def number(s: Attempt, a: relax.Expr, inverse: bool = False) -> Expr | None:
    """A number that a quantized chain reads, where an operand is one; a whole one is a byte. None
    for 0 and 1, which change what is computed. The `inverse` of a divisor is read as a factor."""
    value = filled_number(a)
    if not s.quantized or value is None or isinstance(value, bool) or value in (0.0, 1.0):
        return None
    value = 1 / value if inverse else value
    return _number(s, value, relax.const(value, "float32") if inverse else a)


def _number(s: Attempt, value: float, own: relax.Expr) -> Expr:
    """A number that is read, known as the value `own`."""
    byte = value.is_integer() and -128 <= value <= 255
    stored = ("uint8" if value > 0 else "int8") if byte else "float32"
    name = s.draft.fresh(_MORE)
    s.draft.sources[name] = DraftInput(own, {}, 0, (), stored, np.full((), value, stored))
    return Cast(Read(name, ()), "float32") if byte else Read(name, ())


def scaled(s: Attempt, e: Expr, factor: Expr) -> Expr:
    """A product with a factor. Two numbers that are read, one after the other, become one."""
    if isinstance(e, Call) and e.op == "mul":
        values = [_known(s, x) for x in (e.args[1], factor)]
        if None not in values:
            both = math.prod(float(v) for v in values if v is not None)
            return scaled(s, e.args[0], _number(s, both, relax.const(both, "float32")))
    return simplify("mul", e, factor)


def _known(s: Attempt, e: Expr) -> float | None:
    """The value of a number that is read."""
    inner = uncast(e)
    source = s.draft.sources.get(inner.tensor) if isinstance(inner, Read) else None
    if source is None or source.array is None or source.layout or source.array.size != 1:
        return None
    return float(source.array.item())


def whole_leaf(s: Attempt, node: Read | Index) -> Interval | None:
    """The bounds of an element that is read, where it is a whole number of one or two bytes."""
    source = s.draft.sources.get(node.tensor) if isinstance(node, Read) else None
    if source is None or source.dtype not in BOUNDS:
        return None
    low, high = BOUNDS[source.dtype]
    return float(low), float(high)


def shown_where(s: Attempt, a: relax.Expr, along: Along) -> Expr | None:
    """The condition on positions that a constant mask is; None where it is none.

    The mask varies along two dimensions of the result, each of them one axis.
    """
    if isinstance(a, (tirx.IntImm, tirx.FloatImm)) or a in s.values:
        return None
    extents = shape(a)
    if array(a) is None and not isinstance(a, relax.Var):
        return None
    view = followed_views(
        s, LaidOutValue(a, broadcast(along[len(along) - len(extents) :], extents))
    )
    mask, axes = array(view.value), tuple(view.layout)
    if mask is None or len(axes) != 2:
        return None
    rows, columns = sorted(axes, key=lambda x: -view.layout[x])
    source = DraftInput(view.value, view.layout, view.offset, axes, dtype(view.value), mask)
    dense = laid_out(source, (rows, columns), s.draft.sizes)
    return condition(dense, position(rows).axis, position(columns).axis)


def whole(s: Attempt, a: relax.Expr) -> ChainValue:
    """An operand with all its axes: a value of the chain, or an input whose dimensions become axes
    of their own."""
    if a in s.values:
        return s.values[a].plain
    along = [s.dimension(e) for e in shape(a)]
    element = operand(s, a, along)
    return ChainValue(
        element, tuple(x for axes in along for x, _ in axes), broadcast(along, shape(a))
    )


def factor(
    s: Attempt, value: relax.Expr, along: Along, name: str, order: Sequence[int]
) -> tuple[str, float]:
    """The input that a product's operand is read from, and the product of the constant factors
    between the two. A constant one is stored with its axes in this `order`."""
    scale = 1.0
    extents = shape(value)
    view = LaidOutValue(value, broadcast(along[-len(extents) :], extents))
    while True:
        view = followed_views(s, view)
        if s.quantized or (unscaled := _unscaled(s, view)) is None:
            break
        view, number = unscaled
        scale *= number
    kept = tuple(a for a in order if a in view.layout)
    return input_tensor(s, view, kept, [name, _MORE[0]]), scale


def _unscaled(s: Attempt, view: LaidOutValue) -> tuple[LaidOutValue, float] | None:
    """The value that an operand is a constant multiple of, and the factor; None if it is none."""
    v = view.value
    value = s.flow.values.get(v) if isinstance(v, relax.Var) else None
    if value is None or s.flow.kinds[v] != "elementwise" or v in s.closed:
        return None
    if value.op.name not in ("relax.multiply", "relax.divide") or len(s.flow.readers[v]) > 1:
        return None
    one, two = value.args
    number = filled_number(two)
    if number is None and value.op.name == "relax.multiply":
        one, two, number = two, one, filled_number(one)
    if not number or size(two) != 1 or shape(one) != shape(v) or v in s.flow.outputs:
        return None
    scale = float(number) if value.op.name == "relax.multiply" else 1 / float(number)
    return replace(view, value=one), scale


def axes_of(along: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...]:
    """The axes along some dimensions, outermost first."""
    return tuple(a for axes in along for a, _ in axes)
