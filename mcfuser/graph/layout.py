"""Values that are stored with their channels last, and where their elements lie in memory.

A value [n, channels, ..] of a convolutional network is stored as [n, .., channels] where only what
chains can read differently reads it. Its neighbours in memory are then channels of one position:
vectors are full whatever a picture's width is, and windows with strides read them as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tvm import relax

from mcfuser.graph.convolution import convolution
from mcfuser.graph.dataflow import Dataflow, array, extents, shape, size, sources
from mcfuser.graph.views import AxisStrides, LaidOutValue, sliding_strides, within

ChannelsLast = Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, bool], bool]
"""Whether kernels of a convolution over windows of these extents, strides and dilation, of so many
channels, of integers or not, are fastest where pictures have their channels last."""


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


# --- which values -------------------------------------------------------------------------------


def channels_last(flow: Dataflow, best: ChannelsLast) -> frozenset[relax.Var]:
    """The values that are stored with their channels last, if they are stored.

    They are those that convolutions compute, and what is computed from these position by position,
    where every reader can be part of a chain. Values that are combined are stored alike: as they
    are written, where one of them is on either side of a convolution whose kernels want that
    (`best`).
    """
    found = set[relax.Var]()
    for v in flow.order:
        if len(extents(v) or ()) > 2 and _has_channels(flow, v, found):
            found.add(v)
    if not found:
        return frozenset()
    free = set[relax.Var]()
    for v in reversed(flow.order):
        if v not in flow.outputs and all(
            _takes(flow, reader, found, free) for reader in flow.readers.get(v, ())
        ):
            free.add(v)
    alike, written = _alike(flow, found), set[relax.Var]()
    for v in flow.products:
        if v in found and not _is_best(flow, v, best):
            sides = (v, unpadded(flow, flow.values[v].args[0]))
            written |= {alike[x] for x in sides if x in alike}
    return frozenset(v for v in found & free if alike[v] not in written)


def _alike(flow: Dataflow, found: set[relax.Var]) -> dict[relax.Var, relax.Var]:
    """For each value with channels, one that stands for all those that are stored alike: what maps
    combine, views of one value, and what windows are pooled of."""
    first: dict[relax.Var, relax.Var] = {v: v for v in found}

    def root(v: relax.Var) -> relax.Var:
        while first[v] != v:
            first[v] = v = first[first[v]]
        return v

    for v in flow.order:
        pooled = flow.kinds[v] == "reduction"
        if v in found and flow.kinds[v] != "product":
            for a in map(partial(unpadded, flow), sources(flow.values[v])):
                if a in found and (pooled or size(a) == size(v)):
                    first[root(a)] = root(v)
    return {v: root(v) for v in found}


def _is_best(flow: Dataflow, v: relax.Var, best: ChannelsLast) -> bool:
    """Whether a product's kernels want channels last: a convolution's, or those of a product of
    single positions."""
    product = flow.values[v]
    if product.op.name == "relax.matmul":
        one = (1,) * (len(shape(product)) - 2)
        return best(one, one, one, shape(product.args[1])[-2], False)
    found = convolution(product)
    if found is None:
        return False
    windows, depth = found.windows, shape(product.args[1])[1]
    whole = _multiplies_integers(flow, product)
    return best(windows.extents, windows.strides, windows.dilation, depth, whole)


def _multiplies_integers(flow: Dataflow, convolution: relax.Call) -> bool:
    """Whether a convolution's kernel multiplies integers: those that its data are made of by those
    that its weights are made of."""
    data, weight = convolution.args
    made = flow.kinds.get(weight) == "constant"
    return made and unpadded(flow, data) in flow.widened


def unpadded(flow: Dataflow, value: relax.Expr) -> relax.Expr:
    """What a value is the padding of, if it is one."""
    padded = flow.values.get(value) if isinstance(value, relax.Var) else None
    if isinstance(padded, relax.Call) and flow.operator(value) == "nn.pad":
        return padded.args[0]
    return value


def _has_channels(flow: Dataflow, v: relax.Var, found: set[relax.Var]) -> bool:
    """Whether dimension 1 of a value is channels, given which values before have some."""
    value = flow.values[v]
    match flow.kinds[v]:
        case "product" if value.op.name == "relax.matmul":
            return is_pointwise(flow, value) and value.args[1] in found
        case "product":
            return True
        case "view":
            return _keeps_channels(value, found)
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


def _keeps_channels(view: relax.Call, found: set[relax.Var]) -> bool:
    """Whether a view changes spatial dimensions alone."""
    before, after = view.args[0], shape(view)
    if before not in found or len(after) < 3 or view.op.name == "relax.permute_dims":
        return False
    return shape(before)[:2] == after[:2]


def _takes(flow: Dataflow, reader: relax.Var, found: set[relax.Var], free: set[relax.Var]) -> bool:
    """Whether what reads a value can be part of a chain, however that value is stored."""
    match flow.kinds[reader]:
        case "view":
            turned = flow.values[reader].op.name == "relax.permute_dims"
            return (turned or reader in found) and reader in free
        case "concatenation":
            return False
        case "other":
            return flow.operator(reader) == "nn.pad" and _only_windows(flow, reader)
    return True


def _only_windows(flow: Dataflow, padded: relax.Var) -> bool:
    """Whether only windows are read of what is padded, so that the padding is never written."""
    return padded not in flow.outputs and all(
        flow.kinds[reader] == "product" or "_pool" in flow.operator(reader)
        for reader in flow.readers.get(padded, ())
    )
