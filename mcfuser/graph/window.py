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
from mcfuser.graph.multiply import is_loaded, rescaled, unscaled
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
    if weight in s.values:
        column, deep, *window = along_of(s, weight)
    else:
        column, deep = s.dimension(columns // found.groups), s.dimension(depth)
        window = [s.dimension(e) for e in found.windows.extents]
    spatial = [s.dimension(e) for e in out[2:]]
    over = axes_of([deep, *window])
    if not over:
        raise Unliftable("it sums nothing: its windows have one element")
    units = dense(shape(data))
    layout = _strides([(batch, units[0]), (group, depth * units[1]), (deep, units[1])])
    layout |= _sliding(found.windows, spatial, window, units[2:])
    channelwise = found.groups > 1 and depth == 1
    given = _data(s, data, layout, weight, channelwise)
    scales = given.scales
    if (lying := s.draft.sources[given.input]).value in s.flow.channels_last:
        over = tuple(sorted(over, key=lambda a: -lying.layout[a]))  # as the data lie
    if weight in s.values:
        weights, more = _made_weights(s, weight, over)
        scales = [*scales, *more]
    else:
        units = dense(shape(weight))
        rows = [(group, columns // found.groups * units[0]), (column, units[0]), (deep, units[1])]
        layout = _strides([*rows, *zip(window, units[2:], strict=True)])
        order = (*axes_of([group]), *over, *axes_of([column]))
        if s.channels_last and depth == 1:
            order = (*over, *axes_of([group, column]))
        weights = Read(_weights(s, weight, layout, order), ())
    name = s.draft.fresh([s.names["first"]])
    kept = axes_of([batch, group, *spatial, column])
    body = call("mul", given.element, weights)
    factors = (_tensor(given.element), _tensor(weights))
    s.draft.operators.append(DraftOperator(name, kept, body, "sum", over, factors))
    units = dense(out)
    group_unit = columns // found.groups * units[1]
    layout = _strides([(batch, units[0]), (group, group_unit), (column, units[1])])
    layout |= _strides(zip(spatial, units[2:], strict=True))
    total: Expr
    axes, total = axes_of([batch, group, column, *spatial]), Read(name, ())
    if given.zero:
        total = call("sub", total, _excess(s, weight, given.zero, group, column))
    return ChainValue(rescaled(s, total, scales), axes, layout)


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


def _data(
    s: Attempt, data: relax.Expr, layout: AxisStrides, weights: relax.Expr, channelwise: bool
) -> _Data:
    """The data of a convolution. They are integers where they are made of such ones, and multiplied
    by such ones, or by the known weights of one channel alone. Integers less a zero point are a
    tensor of their own, as a product's operand; sums over one channel subtract it themselves."""
    view = without_padding(s, followed_views(s, LaidOutValue(data, layout)), channelwise)
    found = integer_windows(s, view) if channelwise or weights in s.values else None
    zero = None if found is None or found.zero is None else filled_number(found.zero)
    if channelwise and found is not None and found.zero is not None:
        found = found if zero is not None and array(weights) is not None else None
    if found is None:
        name = input_tensor(s, view, tuple(view.layout), [s.names["left"], "F"])
        return _Data(name, Read(name, ()))
    view = found.view if found.view.padding else followed_views(s, found.view)
    name = input_tensor(s, view, tuple(view.layout), [s.names["left"], "F"])
    element: Expr = Cast(Read(name, ()), "float32")
    if channelwise:
        return _Data(name, element, found.scales(s), float(zero or 0))
    element, scales = found.difference(s, element), found.scales(s)
    if not isinstance(element, Cast):
        made = DraftOperator(s.draft.fresh(["P"]), s.draft.sources[name].order, element)
        s.draft.operators.append(made)
        element = Read(made.out, ())
    return _Data(name, element, scales)


def _excess(s: Attempt, weights: relax.Expr, zero: float, group: Axes, column: Axes) -> Expr:
    """What sums have too much where each element of the data has a zero point too much: that times
    the sum of a channel's weights."""
    known = array(weights)
    assert known is not None
    sums = zero * known.astype(np.float64).reshape(len(known), -1).sum(1)
    columns = len(known) // math.prod(s.draft.sizes[a] for a, _ in group)
    layout = _strides([(group, columns), (column, 1)])
    view = LaidOutValue(relax.const(sums.astype(np.float32)), layout)
    return Read(input_tensor(s, view, axes_of([group, column]), [s.names["right"], "F"]), ())


def _made_weights(s: Attempt, weight: relax.Var, over: Sequence[int]) -> tuple[Expr, list[Expr]]:
    """An element of weights that are made of integers, without the factors that do not vary along
    the axes that are summed over, and these."""
    inner = s.values[weight].plain
    element, factors = unscaled(s, inner.expr, over)
    if is_loaded(s, element):
        return Cast(uncast(element), "float32"), factors
    return Read(stored_tensor(s, replace(inner, expr=element), "W"), ()), factors


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


def _weights(s: Attempt, weights: relax.Expr, layout: AxisStrides, order: tuple[int, ...]) -> str:
    view = followed_views(s, LaidOutValue(weights, layout))
    return input_tensor(s, view, order, [s.names["right"], "F"])
