"""The strides of a chain's axes in a value, and how views (reshapes, transposes) change them.

`AxisStrides` give each axis its stride, in elements, in the dense row-major order of a value. Axes
along which the value does not vary are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax

from mcfuser.chain import dense
from mcfuser.graph.dataflow import Dataflow, array, operator_name, shape

AxisStrides = dict[int, int]
Axes = list[tuple[int, int]]
"""The axes along a dimension, outermost first, with their strides in it."""
Along = list[Axes]
"""For each dimension of a value, the axes along it, outermost first, with their strides in it."""


class Straddle(Exception):
    """An axis crosses the end of a dimension: a view splits it.

    Two axes in its place, the inner one with extent `inner`, would each stay in one dimension.
    """

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis, self.inner = axis, inner


class Unliftable(Exception):
    """Some bindings cannot be written as a chain; the message says why."""


@dataclass(frozen=True, slots=True)
class LaidOutPadding:
    """A number around a dimension of a value, whose extent and stride (elements) these are, in
    `before` positions before its first one, and as many as are read past its last one; and the axes
    that move along it."""

    axes: tuple[int, ...]
    extent: int
    stride: int
    before: int
    number: float


@dataclass(frozen=True, slots=True)
class LaidOutValue:
    """A value, with the strides of the axes in it, the offset of their first element, and the
    padding that they reach."""

    value: relax.Expr
    layout: AxisStrides
    offset: int = 0
    padding: tuple[LaidOutPadding, ...] = ()


def within(layout: AxisStrides, sizes: Mapping[int, int], extents: Sequence[int]) -> Along:
    """The axes along each dimension of a value with these `extents`.

    Raises Straddle where an axis runs along two dimensions, Unliftable where it runs along none.
    """
    axes_along: list[list[tuple[int, int]]] = [[] for _ in extents]
    strides = dense(extents)
    beyond = sum((sizes[axis] - 1) * stride for axis, stride in layout.items())
    for axis, stride in sorted(layout.items(), key=lambda item: -item[1]):
        last, beyond = beyond, beyond - (sizes[axis] - 1) * stride
        for d, (unit, extent) in enumerate(zip(strides, extents, strict=True)):
            if extent == 1 or stride % unit or stride >= unit * extent:
                continue
            # an axis of every other position may end before a whole step would
            if stride * sizes[axis] > unit * extent and last >= unit * extent:
                raise Straddle(axis, parted_axis(stride, sizes[axis], unit * extent))
            axes_along[d].append((axis, stride // unit))
            break
        else:
            raise Unliftable("an axis does not lie along a dimension of a reshaped value")
    return axes_along


def parted_axis(stride: int, extent: int, boundary: int) -> int:
    """The extent of the inner one of two axes in place of one that crosses a `boundary`, all of
    them in one dimension. Raises Unliftable where no two axes would do."""
    inner, rest = divmod(boundary, stride)
    if rest or extent % inner:
        raise Unliftable("a view cuts an axis into parts that do not divide it")
    return inner


def split(
    layout: AxisStrides, sizes: Mapping[int, int], cut: Straddle
) -> tuple[AxisStrides, dict[int, int], int]:
    """The strides and extents with two axes in place of one that is cut; the inner one is new."""
    made, stride = max(sizes) + 1, layout[cut.axis]
    layout = {**layout, cut.axis: stride * cut.inner, made: stride}
    return layout, {**sizes, cut.axis: sizes[cut.axis] // cut.inner, made: cut.inner}, made


def forward(call: relax.Call, layout: AxisStrides, sizes: Mapping[int, int]) -> AxisStrides:
    """The strides in the result of a view or a broadcast, given those in its argument."""
    if call.op.name == "relax.broadcast_to":
        return broadcast(within(layout, sizes, shape(call.args[0])), shape(call))
    if call.op.name != "relax.permute_dims":
        return dict(layout)
    before, order = shape(call.args[0]), permutation(call)
    after = dense([before[d] for d in order])
    axes_along = within(layout, sizes, before)
    return {axis: inner * after[i] for i, d in enumerate(order) for axis, inner in axes_along[d]}


def permutation(call: relax.Call) -> tuple[int, ...]:
    """For each dimension of a transpose's result, that of its argument."""
    rank = len(shape(call.args[0]))
    axes = call.attrs.axes
    return tuple(int(a) % rank for a in axes) if axes is not None else tuple(range(rank))[::-1]


def sliding_strides(
    layout: AxisStrides, before: Sequence[LaidOutPadding], after: Sequence[LaidOutPadding]
) -> AxisStrides:
    """The strides of the axes that move along padding where its dimensions, which had the strides
    of `before` in this layout, have those of `after`."""
    return {
        a: layout[a] // one.stride * two.stride
        for one, two in zip(before, after, strict=True)
        for a in one.axes
    }


def broadcast(along: Along, extents: Sequence[int]) -> AxisStrides:
    """The strides of the axes in a dense tensor that is broadcast along them.

    Its dimensions are the last ones of `along`; the tensor does not vary along those of extent 1.
    """
    layout: AxisStrides = {}
    skip = len(along) - len(extents)
    for axes, unit, extent in zip(along[skip:], dense(extents), extents, strict=True):
        if extent > 1:
            layout.update((axis, inner * unit) for axis, inner in axes)
    return layout


def step(flow: Dataflow, view: LaidOutValue, sizes: Mapping[int, int]) -> LaidOutValue | None:
    """The same elements in the argument of a view; None where the value is no strided view, or a
    step of a sequence (Dataflow.steps).

    Raises Straddle where the view splits an axis.
    """
    value = flow.values.get(view.value) if isinstance(view.value, relax.Var) else None
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return None
    if view.value in flow.steps:
        return None
    source = value.args[0]
    match value.op.name:
        case "relax.reshape" | "relax.flatten" | "relax.expand_dims" | "relax.squeeze":
            return LaidOutValue(source, view.layout, view.offset)
        case "relax.permute_dims":
            return _strided(view, source, sizes, lambda: _permuted(value))
        case "relax.broadcast_to":
            return _strided(view, source, sizes, lambda: _broadcast(value))
        case "relax.strided_slice":
            return _strided(view, source, sizes, lambda: sliced(value))
        case "relax.take":
            return _strided(view, source, sizes, lambda: _taken(value))
    return None


Steps = tuple[list[int], int]
"""For each dimension of a view its stride in the view's argument; and the view's offset there."""


def _strided(
    view: LaidOutValue,
    source: relax.Expr,
    sizes: Mapping[int, int],
    steps: Callable[[], Steps | None],
) -> LaidOutValue | None:
    view_steps = steps()
    if view_steps is None:
        return None
    units, offset = view_steps
    extents = shape(view.value)
    along = within(view.layout, sizes, extents)
    start = [view.offset // u % e for u, e in zip(dense(extents), extents, strict=True)]
    for first, axes, extent in zip(start, along, extents, strict=True):
        if first + sum((sizes[a] - 1) * i for a, i in axes) >= extent:
            return None  # it goes on in the next row, which need not lie behind this one
    layout = {a: i * units[d] for d, axes in enumerate(along) for a, i in axes if units[d]}
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


def sliced(call: relax.Call) -> Steps | None:
    """The steps of a slice in its argument; None where they run backwards."""
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


def cut_along(value: relax.Expr) -> tuple[int, int, int] | None:
    """The dimension along which a slice cuts, the first position there and the one behind the last;
    None if it is no slice of one dimension, or leaves elements out between."""
    if operator_name(value) != "strided_slice":
        return None
    axes, begins, _, *steps = ([int(x) for x in a.fields] for a in value.args[1:])
    if len(axes) != 1 or any(s != 1 for row in steps for s in row):
        return None
    axis = axes[0] % len(shape(value))
    begin = begins[0] if begins[0] >= 0 else max(0, begins[0] + shape(value.args[0])[axis])
    return axis, begin, begin + shape(value)[axis]


def _taken(call: relax.Call) -> Steps | None:
    index = array(call.args[1])
    if index is None or index.ndim or call.attrs.axis is None:
        return None
    source = shape(call.args[0])
    axis = int(call.attrs.axis) % len(source)
    units = dense(source)
    position = int(index) % source[axis]
    return [u for d, u in enumerate(units) if d != axis], position * units[axis]
