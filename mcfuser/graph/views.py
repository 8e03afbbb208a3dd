"""How the axes of a chain lie in a value: strides, carried through reshapes and transposes.

`AxisStrides` give each axis its stride, in elements, in the dense row-major order of a value. Axes
along which the value does not vary are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax

from mcfuser.graph.dataflow import Dataflow, array, shape

AxisStrides = dict[int, int]
Along = list[list[tuple[int, int]]]
"""For each dimension the axes along it, outermost first, and their strides within it."""


class Straddle(Exception):
    """An axis that runs across a dimension's end; two axes, `inner` steps inside, would not."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis, self.inner = axis, inner


class Unliftable(Exception):
    """Why some bindings cannot be written as a chain, for people."""


@dataclass(frozen=True, slots=True)
class LaidOutValue:
    """A value, and how the axes lie in it."""

    value: relax.Expr
    layout: AxisStrides
    offset: int = 0


def dense(extents: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(extents[i + 1 :]) for i in range(len(extents)))


def within(layout: AxisStrides, sizes: Mapping[int, int], extents: Sequence[int]) -> Along:
    """For each dimension the (axis, stride within it) that run along it, outermost first.

    Raises Straddle where an axis runs along two dimensions.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in extents]
    strides = dense(extents)
    for axis, stride in sorted(layout.items(), key=lambda item: -item[1]):
        for d, (unit, extent) in enumerate(zip(strides, extents, strict=True)):
            if extent == 1 or stride % unit or stride >= unit * extent:
                continue
            if stride * sizes[axis] > unit * extent:
                raise Straddle(axis, _inner(stride, sizes[axis], unit * extent))
            found[d].append((axis, stride // unit))
            break
        else:
            raise Unliftable("an axis does not lie along a dimension of a reshaped value")
    return found


def _inner(stride: int, extent: int, boundary: int) -> int:
    inner, rest = divmod(boundary, stride)
    if rest or extent % inner:
        raise Unliftable("a reshape cuts an axis into parts that do not divide it")
    return inner


def forward(call: relax.Call, layout: AxisStrides, sizes: Mapping[int, int]) -> AxisStrides:
    """The layout in the value of a view, from the layout in what it views."""
    if call.op.name != "relax.permute_dims":
        return dict(layout)
    before, order = shape(call.args[0]), permutation(call)
    after = dense([before[d] for d in order])
    found = within(layout, sizes, before)
    return {axis: inner * after[i] for i, d in enumerate(order) for axis, inner in found[d]}


def permutation(call: relax.Call) -> tuple[int, ...]:
    rank = len(shape(call.args[0]))
    axes = call.attrs.axes
    return tuple(int(a) % rank for a in axes) if axes is not None else tuple(range(rank))[::-1]


def broadcast(along: Along, extents: Sequence[int]) -> AxisStrides:
    """The layout in a tensor of these extents, aligned to the right; extent 1 is broadcast."""
    layout: AxisStrides = {}
    skip = len(along) - len(extents)
    for axes, unit, extent in zip(along[skip:], dense(extents), extents, strict=True):
        if extent > 1:
            layout.update((axis, inner * unit) for axis, inner in axes)
    return layout


def step(flow: Dataflow, place: LaidOutValue, sizes: Mapping[int, int]) -> LaidOutValue | None:
    """The same elements in the value that a view reads, or None where it is no strided view.

    Raises Straddle where it is one for two axes in an axis's stead.
    """
    value = flow.values.get(place.value) if isinstance(place.value, relax.Var) else None
    if isinstance(value, relax.TupleGetItem):
        call = flow.values.get(value.tuple_value)
        if not isinstance(call, relax.Call) or call.op.name != "relax.split":
            return None
        return _strided(place, call.args[0], sizes, lambda: _part(call, value.index))
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return None
    source = value.args[0]
    match value.op.name:
        case "relax.reshape" | "relax.flatten" | "relax.expand_dims" | "relax.squeeze":
            return LaidOutValue(source, place.layout, place.offset)
        case "relax.permute_dims":
            return _strided(place, source, sizes, lambda: _permuted(value))
        case "relax.broadcast_to":
            return _strided(place, source, sizes, lambda: _broadcast(value))
        case "relax.strided_slice":
            return _strided(place, source, sizes, lambda: _sliced(value))
        case "relax.take":
            return _strided(place, source, sizes, lambda: _taken(value))
    return None


Steps = tuple[list[int], int]
"""For each dimension of a view the stride of a step in what it views, and where it begins."""


def _strided(
    place: LaidOutValue,
    source: relax.Expr,
    sizes: Mapping[int, int],
    steps: Callable[[], Steps | None],
) -> LaidOutValue | None:
    found = steps()
    if found is None:
        return None
    units, offset = found
    extents = shape(place.value)
    along = within(place.layout, sizes, extents)
    layout = {a: i * units[d] for d, axes in enumerate(along) for a, i in axes if units[d]}
    start = (place.offset // u % e for u, e in zip(dense(extents), extents, strict=True))
    return LaidOutValue(
        source, layout, offset + sum(c * u for c, u in zip(start, units, strict=True))
    )


def _permuted(call: relax.Call) -> Steps:
    units = dense(shape(call.args[0]))
    return [units[d] for d in permutation(call)], 0


def _broadcast(call: relax.Call) -> Steps:
    source = shape(call.args[0])
    units = [u if e > 1 else 0 for u, e in zip(dense(source), source, strict=True)]
    return [0] * (len(shape(call)) - len(source)) + units, 0


def _sliced(call: relax.Call) -> Steps | None:
    axes, begins, _, *rest = ([int(x) for x in arg.fields] for arg in call.args[1:])
    source = shape(call.args[0])
    units, offset = list(dense(source)), 0
    for axis, begin, stride in zip(axes, begins, rest[0] if rest else [1] * len(axes), strict=True):
        if stride < 1:
            return None
        first = begin + source[axis] if begin < 0 else begin
        offset += min(max(first, 0), source[axis] - 1) * units[axis]
        units[axis] *= stride
    return units, offset


def _part(call: relax.Call, index: int) -> Steps:
    source = shape(call.args[0])
    axis = int(call.attrs.axis) % len(source)
    units = dense(source)
    before = sum(int(part.shape.values[axis]) for part in list(call.ty.fields)[:index])
    return list(units), before * units[axis]


def _taken(call: relax.Call) -> Steps | None:
    index = array(call.args[1])
    if index is None or index.ndim or call.attrs.axis is None:
        return None
    source = shape(call.args[0])
    axis = int(call.attrs.axis) % len(source)
    units = dense(source)
    position = int(index) % source[axis]
    return [u for d, u in enumerate(units) if d != axis], position * units[axis]
