"""Values that are stored with their channels last, and where their elements lie in memory.

A value [n, channels, ..] of a convolutional network is stored as [n, .., channels] where only what
chains can read differently reads it. Its neighbours in memory are then channels of one position:
vectors are full whatever a picture's width is, and windows with strides read them as they lie. What
only moves elements of such values, as a concatenation of channels, moves them as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import assert_never

from tvm import ir, relax

from mcfuser.chain.strides import ChannelsLast
from mcfuser.graph.dataflow import Dataflow, array, extents, shape
from mcfuser.graph.views import (
    AxisStrides,
    LaidOutValue,
    Straddle,
    Unliftable,
    forward,
    permutation,
    sliding_strides,
    split,
    within,
)


def to_last(rank: int) -> tuple[int, ...]:
    """The dimensions of a value in the order in which it is stored."""
    return (0, *range(2, rank), 1)


def from_last(rank: int) -> tuple[int, ...]:
    """The dimensions of what is stored in the order of the value."""
    return (0, rank - 1, *range(1, rank - 1))


def stored_shape(extents: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of a value in the order in which it is stored."""
    return tuple(extents[d] for d in to_last(len(extents)))


def stored_strides(
    layout: AxisStrides, sizes: Mapping[int, int], extents: tuple[int, ...]
) -> AxisStrides:
    """The strides of axes in memory, given those in a value of these `extents`.

    Raises Straddle where an axis runs along channels and positions, or along several pictures.
    """
    n, channels, *spatial = extents
    places = math.prod(spatial)
    along = within(layout, sizes, (n, channels, places))
    units = (channels * places, 1, channels)
    every = {a: inner * units[d] for d, axes in enumerate(along) for a, inner in axes}
    return {a: every[a] for a in layout}


def stored_view(view: LaidOutValue, sizes: Mapping[int, int]) -> LaidOutValue:
    """The same elements of a value that is stored with its channels last, with their strides and
    their offset in memory. Raises Straddle as `stored_strides` does."""
    whole = shape(view.value)
    _, channels, *spatial = whole
    places = math.prod(spatial)
    picture, inside = divmod(view.offset, channels * places)
    channel, place = divmod(inside, places)
    offset = (picture * places + place) * channels + channel
    padding = tuple(
        replace(p, stride=stored_strides({0: p.stride}, {0: p.extent}, whole)[0])
        for p in view.padding
    )
    sliding = sliding_strides(view.layout, view.padding, padding)
    others = {a: n for a, n in view.layout.items() if a not in sliding}
    every = stored_strides(others, sizes, whole) | sliding
    return LaidOutValue(view.value, {a: every[a] for a in view.layout}, offset, padding)


def rows_of(value: relax.Expr) -> relax.Var | None:
    """The rows, each of which has a position's channels, that a value is a picture of: what is
    stored of it with its channels last. None for any other value."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return None
    rows = value.args[0] if value.op.name == "relax.permute_dims" else None
    if not isinstance(rows, relax.Var) or len(extents(rows) or ()) < 3:
        return None
    return rows if permutation(value) == from_last(len(shape(rows))) else None


# --- what moves elements ------------------------------------------------------------------------


def moved_from(value: relax.Expr) -> tuple[relax.Expr, ...]:
    """What a concatenation of channels, a slice, or a resizing takes the elements of its result
    from, or those that it is interpolated between; nothing for any other operator, and where
    extents are not known."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return ()
    known = value.op.name in _MOVING and extents(value) is not None
    return _MOVING[value.op.name][0](value) if known else ()


def moved_as_stored(value: relax.Call, stored: Sequence[relax.Expr]) -> relax.Expr:
    """The same movement of elements (`moved_from`) of values that are `stored` with their channels
    last."""
    moved: relax.Expr = _MOVING[value.op.name][1](value, stored)
    return moved


def _parts(value: relax.Call) -> tuple[relax.Expr, ...]:
    parts = value.args[0]
    channels = value.attrs.axis is not None and int(value.attrs.axis) % len(shape(value)) == 1
    return tuple(parts.fields) if channels and isinstance(parts, relax.Tuple) else ()


def _joined(value: relax.Call, stored: Sequence[relax.Expr]) -> relax.Expr:
    return relax.op.concat(list(stored), axis=len(shape(value)) - 1)


def _whole(value: relax.Call) -> tuple[relax.Expr, ...]:
    return (value.args[0],)


def _sliced(value: relax.Call, stored: Sequence[relax.Expr]) -> relax.Expr:
    (source,), rank = stored, len(shape(value))
    axes, *others = ([int(x) for x in arg.fields] for arg in value.args[1:])
    axes = [to_last(rank).index(a % rank) for a in axes]
    return relax.op.strided_slice(source, axes, *others)


def _resized_of(value: relax.Call) -> tuple[relax.Expr, ...]:
    fits = value.attrs.layout == "NCHW" and len(extents(value.args[0]) or ()) == 4
    return (value.args[0],) if fits else ()


def _resized(value: relax.Call, stored: Sequence[relax.Expr]) -> relax.Expr:
    (source,), size, attrs = stored, value.args[1], value.attrs
    return relax.op.image.resize2d(
        source,
        size,
        layout="NHWC",
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        out_dtype=attrs.out_dtype,
    )


_Moved = tuple[
    Callable[[relax.Call], tuple[relax.Expr, ...]],
    Callable[[relax.Call, Sequence[relax.Expr]], relax.Expr],
]
_MOVING: Mapping[str, _Moved] = MappingProxyType({
    "relax.concat": (_parts, _joined),
    "relax.strided_slice": (_whole, _sliced),
    "relax.image.resize2d": (_resized_of, _resized),
})  # fmt: skip


# --- which values -------------------------------------------------------------------------------


def layouts(flow: Dataflow, last: ChannelsLast) -> tuple[frozenset[relax.Var], ...]:
    """The sets of values to choose from, all of one being stored with their channels last, if they
    are stored, where kernels are fastest so (mcfuser.chain.strides).

    What is reduced over positions, as for a norm, is read faster by lines: where dense convolutions
    have such values between them, there are two sets, without these and with them.
    """
    match last:
        case "never":
            return (frozenset(),)
        case "always":
            return (channels_last(flow, _interpolated(flow)),)
        case "dense":
            barred = _depthwise(flow)
            both = (barred | _reduced(flow), barred)
            return tuple(dict.fromkeys(channels_last(flow, each) for each in both))
        case _:
            assert_never(last)


def channels_last(
    flow: Dataflow, barred: AbstractSet[relax.Var] = frozenset()
) -> frozenset[relax.Var]:
    """The values that are stored with their channels last, if they are stored; none of the `barred`
    ones is.

    They are those that convolutions compute, what is computed from these position by position, what
    moves elements of these alone, and pictures of rows that convolutions read, where every reader
    can be part of a chain or moves elements of what is stored alike. A depthwise convolution of
    what lies by lines computes lines: a vector of its channels would be gathered for each position
    of a window.
    """
    pictures = [v for v in flow.order if len(extents(v) or ()) > 2]
    moving = {v: parts for v in pictures if (parts := moved_from(flow.values[v]))}
    alike = {v: moving.get(v, ()) or _depthwise_data(flow, v) for v in pictures}
    turned = {
        v for v in _convolved(flow).intersection(pictures) if rows_of(flow.values[v]) is not None
    }
    while True:
        found = set[relax.Var]()
        for v in pictures:
            parts = moving.get(v, ())
            known = found.issuperset(parts) if parts else _has_channels(flow, v, found)
            known |= v in turned
            if known and v not in barred:
                found.add(v)
        if not found:
            return frozenset()
        last = found & _free(flow, found, moving)
        mixed = {v for v in last if not last.issuperset(alike[v])}
        if not mixed:
            return frozenset(last)
        barred = barred | mixed


def has_channels_last(flow: Dataflow, v: relax.Var, result: relax.Var) -> bool:
    """Whether the channels of a picture are last in a chain that computes it, with this `result`:
    in the result, or in the picture where it is stored, and the result is no picture of these
    channels that has them otherwise."""
    last = flow.channels_last
    return result in last or (v in last and shape(result)[:2] != shape(v)[:2])


def _as_it_is(flow: Dataflow, value: relax.Expr) -> Iterator[relax.Var]:
    """A value, and those of which it is a view, or the same numbers in another type."""
    while isinstance(value, relax.Var):
        yield value
        made = flow.values.get(value)
        same = flow.kinds.get(value) == "view" or flow.operator(value) == "astype"
        value = made.args[0] if same and isinstance(made, relax.Call) else None


def _interpolated(flow: Dataflow) -> frozenset[relax.Var]:
    """What is resized otherwise than by its nearest positions: a CPU does that along lines."""
    resized = (v for v in flow.order if flow.operator(v) == "image.resize2d")
    return frozenset(v for v in resized if flow.values[v].attrs.method != "nearest_neighbor")


def _reduced(flow: Dataflow) -> frozenset[relax.Var]:
    """What is reduced otherwise than over windows, and what it is the same numbers as."""
    return frozenset(
        same
        for v in flow.order
        if flow.kinds[v] == "reduction" and "_pool" not in flow.operator(v)
        for a in flow.values[v].args
        for same in _as_it_is(flow, a)
    )


def _depthwise(flow: Dataflow) -> frozenset[relax.Var]:
    """What depthwise convolutions read and compute."""
    data = {v: _depthwise_data(flow, v) for v in flow.order}
    read = (d for many in data.values() for d in many if isinstance(d, relax.Var))
    return frozenset({v for v, many in data.items() if many}.union(read))


def _depthwise_data(flow: Dataflow, v: relax.Var) -> tuple[relax.Expr, ...]:
    """The data of a depthwise convolution, which must be stored with their channels last if its
    result is; nothing for any other value."""
    value = flow.values[v]
    if flow.kinds[v] != "product" or value.op.name == "relax.matmul":
        return ()
    data, weight = value.args
    return (unpadded(flow, data),) if shape(weight)[1] == 1 < shape(data)[1] else ()


def _free(
    flow: Dataflow, found: AbstractSet[relax.Var], moving: Container[relax.Var]
) -> set[relax.Var]:
    """The values that can be stored in any way: no output, and all that reads them can read them
    so, or moves elements to where they are stored alike; given those that have channels."""
    free = set[relax.Var]()

    def takes(reader: relax.Var) -> bool:
        if reader in moving:
            return reader in found and reader in free
        return _takes(flow, reader, found, free)

    for v in reversed(flow.order):
        if v not in flow.outputs and all(map(takes, flow.readers.get(v, ()))):
            free.add(v)
    return free


def unpadded(flow: Dataflow, value: relax.Expr) -> relax.Expr:
    """What a value is the padding of, if it is one."""
    padded = flow.values.get(value) if isinstance(value, relax.Var) else None
    if isinstance(padded, relax.Call) and flow.operator(value) == "nn.pad":
        return padded.args[0]
    return value


def _convolved(flow: Dataflow) -> frozenset[relax.Var]:
    """What convolutions multiply, and what they would multiply but for elementwise operators and
    views that keep its channels."""
    found = set[relax.Expr]()
    for v in reversed(flow.order):
        value = flow.values[v]
        match flow.kinds[v]:
            case "product" if value.op.name != "relax.matmul":
                found.add(unpadded(flow, value.args[0]))
            case "product" if is_pointwise(flow, value):
                found.add(value.args[1])
            case "elementwise" if v in found:
                found |= {a for a in value.args if extents(a) == extents(v)}
            case "view" if v in found and None not in (extents(v), extents(value.args[0])):
                if _keeps_channels(value, {value.args[0]}):
                    found.add(value.args[0])
    return frozenset(v for v in found if isinstance(v, relax.Var))


def _has_channels(flow: Dataflow, v: relax.Var, found: AbstractSet[relax.Var]) -> bool:
    """Whether dimension 1 of a value is channels, given which values before have some."""
    value = flow.values[v]
    match flow.kinds[v]:
        case "product" if value.op.name == "relax.matmul":
            return is_pointwise(flow, value) and value.args[1] in found
        case "product":
            return True
        case "view":
            return _keeps_channels(value, found) or _shuffles(flow, value, found)
        case "elementwise":
            return any(a in found and shape(a) == shape(v) for a in value.args)
        case "reduction":
            return "_pool" in value.op.name and unpadded(flow, value.args[0]) in found
    return False


def is_pointwise(flow: Dataflow, product: relax.Call) -> bool:
    """Whether a product multiplies one constant matrix by the channels of every position."""
    matrix = product.args[0]
    fixed = array(matrix) is not None or flow.kinds.get(matrix) == "constant"
    return fixed and len(shape(matrix)) == 2


def _keeps_channels(view: relax.Call, found: AbstractSet[relax.Var]) -> bool:
    """Whether a view changes spatial dimensions alone."""
    before, after = view.args[0], shape(view)
    if before not in found or len(after) < 3 or view.op.name == "relax.permute_dims":
        return False
    return shape(before)[:2] == after[:2]


def _parts_channels(view: relax.Call) -> bool:
    """Whether a view makes channels several dimensions, and nothing else."""
    before, after = extents(view.args[0]) or (), extents(view) or ()
    n, places = before[:1], before[2:]
    if not places or view.op.name != "relax.reshape" or after[-len(places) :] != places:
        return False
    return {*n} <= _ends(after[: -len(places)])


def _numbers_places(flow: Dataflow, view: relax.Call, found: AbstractSet[relax.Var]) -> bool:
    """Whether a view makes one dimension of all but the channels, or of the places alone, of a
    picture that was turned so that its channels come last."""
    turned = flow.values.get(view.args[0]) if isinstance(view.args[0], relax.Var) else None
    if view.op.name != "relax.reshape" or not isinstance(turned, relax.Call):
        return False
    if turned.op.name != "relax.permute_dims" or turned.args[0] not in found:
        return False
    before, after = shape(turned), shape(view)
    rows = (before[:-1], (before[0], math.prod(before[1:-1])), (math.prod(before[:-1]),))
    last = permutation(turned) == to_last(len(before))
    return last and after[-1] == before[-1] and after[:-1] in rows


def _ends(extents: Sequence[int]) -> set[int]:
    """How many elements the first dimensions have together, of none to all."""
    return {1, *accumulate(extents, mul)}


def _shuffles(flow: Dataflow, view: relax.Call, found: AbstractSet[relax.Var]) -> bool:
    """Whether a view is a picture all of whose channels are channels of what it is made of, as
    those of what a transposed convolution computes. The positions of a picture that is turned
    round, for what reads its channels last, are none."""
    (n, channels, *_), before = shape(view), view.args[0]
    if view.op.name != "relax.reshape" or before in found:
        return False
    ends, views = _ends(extents(before) or ()), [view]
    while flow.kinds.get(before) == "view" and before not in found:
        views.append(flow.values[before])
        before = flow.values[before].args[0]
    if before not in found or not {n, n * channels} <= ends:
        return False
    return _channels_left(shape(before), views[::-1]) == channels


def _channels_left(picture: Sequence[int], views: Sequence[relax.Call]) -> int:
    """How many positions of the second dimension are channels of a picture, after some views of
    it, one of another."""
    channels, places = picture[1], math.prod(picture[2:])
    layout, sizes = {0: places}, {0: channels}
    while True:
        try:
            after = layout
            for view in views:
                after = forward(view, after, sizes)
            row = within(after, sizes, shape(views[-1]))[1]
        except Straddle as cut:
            layout, sizes, _ = split(layout, sizes, cut)
        except Unliftable:
            return 0
        else:
            return math.prod(sizes[a] for a, _ in row)


def _takes(
    flow: Dataflow, reader: relax.Var, found: AbstractSet[relax.Var], free: AbstractSet[relax.Var]
) -> bool:
    """Whether what reads a value can be part of a chain, however that value is stored."""
    match flow.kinds[reader]:
        case "view":
            view = flow.values[reader]
            turned = view.op.name == "relax.permute_dims" or _parts_channels(view)
            rows = turned or _numbers_places(flow, view, found)
            return (rows or reader in found) and reader in free
        case "concatenation":
            return False
        case "other" | "slice" | "broadcast":
            return flow.operator(reader) == "nn.pad" and _only_windows(flow, reader)
    return True


def _only_windows(flow: Dataflow, padded: relax.Var) -> bool:
    """Whether only windows are read of what is padded, so that the padding is never written."""
    return padded not in flow.outputs and all(
        flow.kinds[reader] == "product" or "_pool" in flow.operator(reader)
        for reader in flow.readers.get(padded, ())
    )
