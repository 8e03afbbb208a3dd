"""Slices of values that a chain computes.

A slice that picks one of the parts into which an axis divides a dimension leaves that axis at one
position: a half of a head, or every other element of it, as rotary embeddings turn them. What is
computed of an element is computed there again, from the inputs at that position.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from mcfuser.chain import dense
from mcfuser.expr import Const, Expr, Index, Read, rewrite
from mcfuser.graph.attempt import Attempt, ChainValue, along_of, input_tensor
from mcfuser.graph.dataflow import shape
from mcfuser.graph.views import (
    AxisStrides,
    LaidOutValue,
    Straddle,
    Unliftable,
    parted_axis,
    sliced,
)


def cut(s: Attempt, value: relax.Call) -> ChainValue:
    """The slice of a value that the chain computes.

    Raises Straddle where an axis runs from one part into another, Unliftable where the slice is no
    part of equal ones, or takes a part of what the chain sums.
    """
    steps = sliced(value)
    if steps is None:
        raise Unliftable("a slice runs backwards")
    seen = s.values[value.args[0]].plain
    before, after = shape(value.args[0]), shape(value)
    layout, at = AxisStrides(), dict[int, int]()
    for d, row in enumerate(along_of(s, value.args[0])):
        unit, inside = dense(before)[d], dense(after)[d]
        step, begin = steps[0][d] // unit, steps[1] // unit % before[d]
        end = step * after[d]
        if row and begin % end >= step:
            raise Unliftable("a slice begins within a part of its value")
        for axis, stride in row:
            far = stride * s.draft.sizes[axis]
            if step <= stride and far <= end:
                layout[axis] = stride // step * inside
            elif far <= step or end <= stride:
                at[axis] = begin // stride % s.draft.sizes[axis]
            else:
                boundary = step if stride < step else end
                raise Straddle(axis, parted_axis(stride, s.draft.sizes[axis], boundary))
    axes = tuple(a for a in seen.axes if a not in at)
    return ChainValue(_standing(s, seen.expr, at), axes, layout)


def _standing(s: Attempt, e: Expr, at: Mapping[int, int]) -> Expr:
    """An expression with some axes at one position each."""

    def leaf(node: Read | Index) -> Expr:
        if isinstance(node, Index):
            return Const(at[int(node.axis)]) if int(node.axis) in at else node
        if at.keys().isdisjoint(s.draft.axes(node.tensor)):
            return node
        if node.tensor not in s.draft.sources:
            raise Unliftable("a slice takes a part of what the chain has summed")
        return Read(_source(s, node.tensor, at), ())

    return rewrite(e, leaf)


def _source(s: Attempt, name: str, at: Mapping[int, int]) -> str:
    """The input that an input is with some axes at one position each."""
    source = s.draft.sources[name]
    if source.value in s.flow.channels_last or source.padding:
        raise Unliftable("a slice takes a part of what is padded, or of channels")
    layout = {a: n for a, n in source.layout.items() if a not in at}
    offset = source.offset + sum(n * at.get(a, 0) for a, n in source.layout.items())
    order = tuple(a for a in source.order if a not in at)
    return input_tensor(s, LaidOutValue(source.value, layout, offset), order, [name])
