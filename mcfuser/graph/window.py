"""Lifts convolutions and pooling: reductions over windows of a value that is read.

A window's positions are axes of their own, which step through the data beside the axes of the
result: no element is copied. What is around the data is the chain's padding, and never written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tvm import relax

from mcfuser.chain import Reducer, dense
from mcfuser.expr import Cast, Const, Expr, Read, call
from mcfuser.graph.attempt import Attempt, ChainValue, followed_views, input_tensor
from mcfuser.graph.convolution import Convolution, convolution
from mcfuser.graph.dataflow import FLOATS, dtype, shape
from mcfuser.graph.draft import DraftOperator
from mcfuser.graph.operand import axes_of
from mcfuser.graph.padded import without_padding
from mcfuser.graph.pooling import pooling
from mcfuser.graph.scalar import simplify
from mcfuser.graph.sliding import SlidingWindows
from mcfuser.graph.views import Axes, AxisStrides, LaidOutValue, Unliftable, broadcast


def lifted_convolution(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A convolution of a value that is read: a sum over its channels and its windows.

    Channels of the result are the columns of the product, positions its rows, so that the weights
    are vectors and the data are read as they lie.
    """
    found = _liftable(s, v, value)
    data, weight = value.args
    (n, *_), (columns, depth, *_) = shape(data), shape(weight)
    out = shape(v)
    batch, group = s.dimension(n), s.dimension(found.groups)
    column, deep = s.dimension(columns // found.groups), s.dimension(depth)
    spatial = [s.dimension(e) for e in out[2:]]
    window = [s.dimension(e) for e in found.windows.extents]
    over = axes_of([deep, *window])
    if not over:
        raise Unliftable("it sums nothing: its windows have one element")
    units = dense(shape(data))
    layout = _strides([(batch, units[0]), (group, depth * units[1]), (deep, units[1])])
    layout |= _sliding(found.windows, spatial, window, units[2:])
    left = _input(s, data, layout, (), "left", channelwise=found.groups > 1 and depth == 1)
    if (lying := s.draft.sources[left]).value in s.flow.channels_last:
        over = tuple(sorted(over, key=lambda a: -lying.layout[a]))  # as the data lie
    units = dense(shape(weight))
    rows = [(group, columns // found.groups * units[0]), (column, units[0]), (deep, units[1])]
    layout = _strides([*rows, *zip(window, units[2:], strict=True)])
    order = (*axes_of([group]), *over, *axes_of([column]))
    if s.channels_last and depth == 1:
        order = (*over, *axes_of([group, column]))
    right = _input(s, weight, layout, order, "right")
    name = s.draft.fresh([s.names["first"]])
    kept = axes_of([batch, group, *spatial, column])
    body = call("mul", Read(left, ()), Read(right, ()))
    s.draft.operators.append(DraftOperator(name, kept, body, "sum", over, (left, right)))
    units = dense(out)
    group_unit = columns // found.groups * units[1]
    layout = _strides([(batch, units[0]), (group, group_unit), (column, units[1])])
    layout |= _strides(zip(spatial, units[2:], strict=True))
    return ChainValue(Read(name, ()), axes_of([batch, group, column, *spatial]), layout)


def lifted_pooling(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A maximum or a mean over the windows of a value that is read."""
    found, (data,) = pooling(value), value.args
    if found is None or found.windows.padded or data in s.values:
        raise Unliftable(f"'{v.name}' has windows of what is not read, or windows with padding")
    if dtype(data) not in FLOATS:
        raise Unliftable(f"its operand has dtype {dtype(data)}")
    out = shape(v)
    kept = [s.dimension(e) for e in out]
    window = [s.dimension(e) for e in found.windows.extents]
    over = axes_of(window)
    if not over:
        raise Unliftable("it reduces a single element")
    units = dense(shape(data))
    layout = _strides(zip(kept[:2], units[:2], strict=True))
    layout |= _sliding(found.windows, kept[2:], window, units[2:])
    element: Expr = Read(_input(s, data, layout, (), "left", channelwise=True), ())
    if dtype(data) != "float32":
        element = Cast(element, "float32")
    name, axes = s.draft.fresh(["M" if found.maximum else "Z"]), axes_of(kept)
    reduce: Reducer = "max" if found.maximum else "sum"
    s.draft.operators.append(DraftOperator(name, axes, element, reduce, over))
    result: Expr = Read(name, ())
    if not found.maximum:
        result = simplify("mul", result, Const(1.0 / math.prod(found.windows.extents)))
    return ChainValue(result, axes, broadcast(kept, out))


def _liftable(s: Attempt, v: relax.Var, value: relax.Call) -> Convolution:
    found = convolution(value)
    data, weight = value.args
    if found is None or found.windows.padded:
        raise Unliftable(f"the layout or the padding of '{v.name}' is none that chains have")
    if data in s.values or weight in s.values:
        raise Unliftable(f"'{v.name}' reads windows of a value that the chain computes")
    if dtype(data) != dtype(weight) or dtype(data) not in FLOATS:
        raise Unliftable(
            f"it multiplies {dtype(data)} by {dtype(weight)}, not floats of 16 or 32 bits"
        )
    return found


def _sliding(
    windows: SlidingWindows, places: Sequence[Axes], inside: Sequence[Axes], units: Sequence[int]
) -> AxisStrides:
    """The strides, in data, of the axes of the windows' places and of the positions inside them;
    `units` are those of the spatial dimensions."""
    steps = zip(places, windows.strides, inside, windows.dilation, units, strict=True)
    pairs = (pair for p, s, i, d, u in steps for pair in ((p, s * u), (i, d * u)))
    return _strides(pairs)


def _strides(pairs: Iterable[tuple[Axes, int]]) -> AxisStrides:
    """The strides of some dimensions' axes, given the stride of a position along each dimension."""
    return {a: inner * unit for axes, unit in pairs for a, inner in axes}


def _input(
    s: Attempt, value: relax.Expr, layout: AxisStrides, order: tuple[int, ...], role: str,
    channelwise: bool = False,
) -> str:  # fmt: skip
    view = without_padding(s, followed_views(s, LaidOutValue(value, layout)), channelwise)
    return input_tensor(s, view, order or tuple(view.layout), [s.names[role], "F"])
