"""Lifts convolutions and pooling: reductions over windows of a value that is read.

A window's positions are axes of their own, which step through the data beside the axes of the
result: no element is copied. What is around the data is the chain's padding, and never written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tvm import relax

from mcfuser.chain import Reducer, dense
from mcfuser.expr import Cast, Const, Expr, Read, call, reads, uncast
from mcfuser.graph.attempt import (
    Attempt,
    ChainValue,
    along_of,
    filled_number,
    followed_views,
    input_tensor,
    stored_tensor,
)
from mcfuser.graph.convolution import Convolution, convolution
from mcfuser.graph.dataflow import FLOATS, array, dtype, shape
from mcfuser.graph.draft import DraftOperator
from mcfuser.graph.integer_windows import integer_maxima, integer_windows
from mcfuser.graph.layout import has_channels_last
from mcfuser.graph.multiply import is_loaded, rescaled, unscaled
from mcfuser.graph.operand import axes_of
from mcfuser.graph.padded import without_padding
from mcfuser.graph.pooling import pooling
from mcfuser.graph.scalar import simplify
from mcfuser.graph.sliding import SlidingWindows
from mcfuser.graph.views import Axes, AxisStrides, LaidOutValue, Unliftable, broadcast


@dataclass(frozen=True, slots=True)
class _Dimensions:
    """The axes of a convolution: of the pictures, the groups, a group's channels of the result
    (`column`) and of the data (`deep`), the window's positions, and its places."""

    batch: Axes
    group: Axes
    column: Axes
    deep: Axes
    window: Sequence[Axes]
    spatial: Sequence[Axes]


def lifted_convolution(s: Attempt, v: relax.Var, value: relax.Call) -> ChainValue:
    """A convolution of a value that is read: a sum over its channels and its windows.

    Channels of the result are the columns of the product, positions its rows, so that the weights
    are vectors and the data are read as they lie.
    """
    found, weight = _liftable(s, v, value), value.args[1]
    d = _dimensions(s, v, value, found)
    over = axes_of([d.deep, *d.window])
    if not over:
        raise Unliftable("it sums nothing: its windows have one element")
    given = _data(s, value, found, d)
    if (lying := s.draft.sources[given.input]).value in s.flow.channels_last:
        over = tuple(sorted(over, key=lambda a: -lying.layout[a]))  # as the data lie
    across = has_channels_last(s.flow, v, s.result)
    weights, scales = _weights(s, weight, d, over, across)
    name = s.draft.fresh([s.names["first"]])
    kept = axes_of([d.batch, d.group, *d.spatial, d.column])
    if across and shape(weight)[1] == 1:
        kept = axes_of([d.batch, *d.spatial, d.group, d.column])
    body = call("mul", given.element, weights)
    factors = (_tensor(given.element), _tensor(weights))
    s.draft.operators.append(DraftOperator(name, kept, body, "sum", over, factors))
    units, columns = dense(shape(v)), math.prod(s.draft.sizes[a] for a, _ in d.column)
    layout = _strides([(d.batch, units[0]), (d.group, columns * units[1]), (d.column, units[1])])
    layout |= _strides(zip(d.spatial, units[2:], strict=True))
    total: Expr = Read(name, ())
    if given.zero:
        total = call("sub", total, _excess(s, weight, given.zero, d))
    axes = kept if across else axes_of([d.batch, d.group, d.column, *d.spatial])
    return ChainValue(rescaled(s, total, [*given.scales, *scales]), axes, layout)


def _dimensions(s: Attempt, v: relax.Var, value: relax.Call, found: Convolution) -> _Dimensions:
    """The axes of a convolution; those of weights that the chain computes are known."""
    data, weight = value.args
    columns, depth, *_ = shape(weight)
    batch, group = s.dimension(shape(data)[0]), s.dimension(found.groups)
    if weight in s.values:
        column, deep, *window = along_of(s, weight)
    else:
        column, deep = s.dimension(columns // found.groups), s.dimension(depth)
        window = [s.dimension(e) for e in found.windows.extents]
    return _Dimensions(batch, group, column, deep, window, [s.dimension(e) for e in shape(v)[2:]])


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
    view = without_padding(s, followed_views(s, LaidOutValue(data, layout)), channelwise=True)
    integers = integer_maxima(s, view) if found.maximum else None
    view = view if integers is None else integers.view
    element: Expr = Read(input_tensor(s, view, tuple(view.layout), [s.names["left"], "F"]), ())
    if integers is not None or dtype(data) != "float32":
        element = Cast(element, "float32")
    name, axes = s.draft.fresh(["M" if found.maximum else "Z"]), axes_of(kept)
    reduce: Reducer = "max" if found.maximum else "sum"
    s.draft.operators.append(DraftOperator(name, axes, element, reduce, over))
    result: Expr = Read(name, ())
    if not found.maximum:
        result = simplify("mul", result, Const(1.0 / math.prod(found.windows.extents)))
    if integers is not None:
        result = rescaled(s, integers.difference(s, result), integers.scales(s))
    return ChainValue(result, axes, broadcast(kept, out))


def _liftable(s: Attempt, v: relax.Var, value: relax.Call) -> Convolution:
    found = convolution(value)
    data, weight = value.args
    if found is None or found.windows.padded:
        raise Unliftable(f"the layout or the padding of '{v.name}' is none that chains have")
    made = weight in s.values and (s.flow.kinds[weight] != "constant" or found.groups > 1)
    if data in s.values or made:
        raise Unliftable(f"'{v.name}' reads windows of a value that the chain computes")
    if dtype(data) != dtype(weight) or dtype(data) not in FLOATS:
        raise Unliftable(
            f"it multiplies {dtype(data)} by {dtype(weight)}, not floats of 16 or 32 bits"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Data:
    """What a convolution reads of its data: an element of an `input`, less a zero point or not,
    without the `scales` that multiply its sums. `zero` is what each element has too much."""

    input: str
    element: Expr
    scales: list[Expr] = field(default_factory=list)
    zero: float = 0.0


def _data(s: Attempt, value: relax.Call, found: Convolution, d: _Dimensions) -> _Data:
    """The data of a convolution. They are integers where they are made of such ones, and multiplied
    by such ones, or by the known weights of one channel alone. Integers less a zero point are a
    tensor of their own, as a product's operand; sums over one channel subtract it themselves."""
    (data, weights), units = value.args, dense(shape(value.args[0]))
    depth = shape(weights)[1]
    channelwise = found.groups > 1 and depth == 1
    layout = _strides([(d.batch, units[0]), (d.group, depth * units[1]), (d.deep, units[1])])
    layout |= _sliding(found.windows, d.spatial, d.window, units[2:])
    view = without_padding(s, followed_views(s, LaidOutValue(data, layout)), channelwise)
    integers = integer_windows(s, view) if channelwise or weights in s.values else None
    zero = None if integers is None or integers.zero is None else filled_number(integers.zero)
    if channelwise and integers is not None and integers.zero is not None:
        integers = integers if zero is not None and array(weights) is not None else None
    if integers is None:
        name = input_tensor(s, view, tuple(view.layout), [s.names["left"], "F"])
        return _Data(name, Read(name, ()))
    view = integers.view if integers.view.padding else followed_views(s, integers.view)
    name = input_tensor(s, view, tuple(view.layout), [s.names["left"], "F"])
    element: Expr = Cast(Read(name, ()), "float32")
    if channelwise:
        return _Data(name, element, integers.scales(s), float(zero or 0))
    element, scales = integers.difference(s, element), integers.scales(s)
    if not isinstance(element, Cast):
        made = DraftOperator(s.draft.fresh(["P"]), s.draft.sources[name].order, element)
        s.draft.operators.append(made)
        element = Read(made.out, ())
    return _Data(name, element, scales)


def _excess(s: Attempt, weights: relax.Expr, zero: float, d: _Dimensions) -> Expr:
    """What sums have too much where each element of the data has a zero point too much: that times
    the sum of a channel's weights."""
    known = array(weights)
    assert known is not None
    sums = zero * known.astype(np.float64).reshape(len(known), -1).sum(1)
    columns = math.prod(s.draft.sizes[a] for a, _ in d.column)
    layout = _strides([(d.group, columns), (d.column, 1)])
    view = LaidOutValue(relax.const(sums.astype(np.float32)), layout)
    return Read(input_tensor(s, view, axes_of([d.group, d.column]), [s.names["right"], "F"]), ())


def _weights(
    s: Attempt, weight: relax.Var, d: _Dimensions, over: tuple[int, ...], across: bool
) -> tuple[Expr, list[Expr]]:
    """An element of the weights; of those that are made of integers, without the factors that do
    not vary along the axes that are summed over, and these. Those of a depthwise convolution
    `across` channels have these last."""
    if weight in s.values:
        inner = s.values[weight].plain
        element, factors = unscaled(s, inner.expr, over)
        if is_loaded(s, element):
            return Cast(uncast(element), "float32"), factors
        return Read(stored_tensor(s, replace(inner, expr=element), "W"), ()), factors
    units, columns = dense(shape(weight)), math.prod(s.draft.sizes[a] for a, _ in d.column)
    rows = [(d.group, columns * units[0]), (d.column, units[0]), (d.deep, units[1])]
    layout = _strides([*rows, *zip(d.window, units[2:], strict=True)])
    order = (*axes_of([d.group]), *over, *axes_of([d.column]))
    if across and shape(weight)[1] == 1:
        order = (*over, *axes_of([d.group, d.column]))
    view = followed_views(s, LaidOutValue(weight, layout))
    return Read(input_tensor(s, view, order, [s.names["right"], "F"]), ()), []


def _tensor(e: Expr) -> str:
    """The first tensor that an operand reads."""
    return reads(e)[0].tensor


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
