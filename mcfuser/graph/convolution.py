"""Rewrites convolutions: matrix products where they are such, and padding apart from the others.

A convolution over single positions or over patches is a matrix product. Any other one reads windows
of its data, which `mcfuser.graph.window` lifts; zeros around the data are written beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.graph.dataflow import array, extents, shape
from mcfuser.graph.matching import calls_rewritten
from mcfuser.graph.sliding import SlidingWindows, sliding_windows, surrounded

_CONVOLVE = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_RANKS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_TRANSPOSED = tuple(f"{name}_transpose" for name in _RANKS)
_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}


@dataclass(frozen=True, slots=True)
class Convolution:
    """The attributes of a convolution of data [n, groups * depth, ..] with weights
    [groups * columns, depth, ..]."""

    groups: int
    windows: SlidingWindows

    @property
    def pointwise(self) -> bool:
        """Whether each position of the result is computed from the same position of the data."""
        windows = self.windows
        single = all(n == 1 for n in (*windows.extents, *windows.strides, self.groups))
        return single and not windows.padded


def convolution(call: relax.Call) -> Convolution | None:
    """The attributes of a convolution; None where its extents are not fixed or its dimensions are
    in another order than ONNX's."""
    data, weight = (extents(a) for a in call.args)
    if data is None or weight is None:
        return None
    attrs = call.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != _LAYOUTS[len(weight) - 2]:
        return None
    if str(attrs.out_layout) not in ("", str(attrs.data_layout)):
        return None
    return Convolution(int(attrs.groups), sliding_windows(attrs, weight[2:]))


def convolutions(function: relax.Function) -> relax.Function:
    """The function with every convolution written as what chains can have: a matrix product, or a
    convolution of data that have their padding."""
    return calls_rewritten(function, _RANKS, _written)


def transposed_convolutions(function: relax.Function) -> relax.Function:
    """The function with transposed convolutions written as others: of the data, whose results are
    put side by side, over single positions where no two windows overlap; or of data with zeros
    between them, where windows are dilated. Those with weights that are computed stay."""
    return calls_rewritten(function, _TRANSPOSED, _untransposed)


def _untransposed(call: relax.Call) -> relax.Expr:
    x, attrs = call.args[0], call.attrs
    data, known = extents(x), array(call.args[1])
    rank = 0 if known is None else known.ndim - 2
    if data is None or known is None:
        return call
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != (
        _LAYOUTS[rank][0], _LAYOUTS[rank][1].replace("OI", "IO")
    ):  # fmt: skip
        return call
    windows, out, groups = sliding_windows(attrs, known.shape[2:]), shape(call), int(attrs.groups)
    if all(d == 1 for d in windows.dilation):
        return _phases(x, known, data, windows, out, groups)
    reach = [(k - 1) * d for k, d in zip(windows.extents, windows.dilation, strict=True)]
    before = [r - p for r, p in zip(reach, windows.before, strict=True)]
    total = [e + r for e, r in zip(out[2:], reach, strict=True)]
    wide = _spaced(x, data, windows.strides, before, total)
    turned = _turned(np.flip(known, tuple(range(2, 2 + rank))), groups)
    return _CONVOLVE[rank](wide, turned, dilation=list(windows.dilation), groups=groups)


def _turned(weight: NDArray[np.generic], groups: int) -> relax.Expr:
    """Weights [groups * depth, columns, ..] of a transposed convolution as those of another."""
    parts = [part.swapaxes(0, 1) for part in np.split(weight, groups)]
    return relax.const(np.ascontiguousarray(np.concatenate(parts)))


@dataclass(frozen=True, slots=True)
class _Phases:
    """A transposed convolution along one dimension. Result j is number r of position q, where
    j + cut = stride q + r. It is the sum over u of data[q - u] weight[stride u + r + shift], for u
    from `first` to `last`."""

    stride: int
    cut: int
    shift: int
    first: int
    last: int

    @property
    def taps(self) -> int:
        return self.last - self.first + 1

    def positions(self, out: int) -> int:
        """Positions that hold so many results."""
        return -(-(out + self.cut) // self.stride)

    def weight(self, weight: NDArray[np.generic], axis: int) -> NDArray[np.generic]:
        """Weights along a dimension, as [.., numbers r, taps, ..] in place of it; those past the
        window are 0."""
        step = self.stride * np.arange(self.last, self.first - 1, -1)
        where = step + np.arange(self.stride)[:, None] + self.shift
        inside = (where >= 0) & (where < weight.shape[axis])
        found = np.take(weight, np.where(inside, where, 0), axis)
        shape = [1] * axis + [*where.shape] + [1] * (weight.ndim - axis - 1)
        return np.where(inside.reshape(shape), found, weight.dtype.type(0))


def _phases_of(extent: int, stride: int, before: int) -> _Phases:
    """Those of windows of this extent with the fewest taps, and of these with the least cut off."""

    def cut_off(cut: int) -> _Phases:
        shift = before - cut
        return _Phases(stride, cut, shift, -((stride - 1 + shift) // stride),
                       (extent - 1 - shift) // stride)  # fmt: skip

    return min(map(cut_off, range(stride)), key=lambda p: (p.taps, p.cut))


def _phases(
    x: relax.Expr, weight: NDArray[np.generic], data: tuple[int, ...], windows: SlidingWindows,
    out: tuple[int, ...], groups: int,
) -> relax.Expr:  # fmt: skip
    """A convolution of the data as they are, which gives each position the results that begin
    there as channels, of each number all columns; and these put side by side."""
    rank, columns = len(data) - 2, out[1]
    found = [
        _phases_of(k, s, p)
        for k, s, p in zip(windows.extents, windows.strides, windows.before, strict=True)
    ]
    for i, p in reversed([*enumerate(found)]):
        weight = p.weight(weight, 2 + i)
    numbers, taps = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    weight = weight.transpose(0, *numbers, 1, *taps)
    strides = [p.stride for p in found]
    weight = weight.reshape(data[1], -1, *(p.taps for p in found))
    counts = [p.positions(n) for p, n in zip(found, out[2:], strict=True)]
    after = [c - 1 - p.first - (e - 1) for c, p, e in zip(counts, found, data[2:], strict=True)]
    fitted = _fitted(x, data, [p.last for p in found], after)
    made = _CONVOLVE[rank](fitted, _turned(weight, groups), groups=groups)
    parted = relax.op.reshape(made, [data[0], groups, *strides, columns // groups, *counts])
    order = [d for i in range(rank) for d in (3 + rank + i, 2 + i)]
    beside = relax.op.permute_dims(parted, [0, 1, 2 + rank, *order])
    whole = [c * s for c, s in zip(counts, strides, strict=True)]
    joined = relax.op.reshape(beside, [data[0], columns, *whole])
    if whole == [*out[2:]]:
        return joined
    ends = [p.cut + n for p, n in zip(found, out[2:], strict=True)]
    return relax.op.strided_slice(joined, [*range(2, 2 + rank)], [p.cut for p in found], ends)


def _fitted(
    x: relax.Expr, data: tuple[int, ...], before: Sequence[int], after: Sequence[int]
) -> relax.Expr:
    """Data with so many zeros before and after them; as much as is negative is cut off."""
    first = [max(-b, 0) for b in before]
    last = [e + min(a, 0) for e, a in zip(data[2:], after, strict=True)]
    if any(first) or last != [*data[2:]]:
        x = relax.op.strided_slice(x, [*range(2, len(data))], first, last)
    return surrounded(x, [max(b, 0) for b in before], [max(a, 0) for a in after])


def _spaced(
    data: relax.Expr,
    given: tuple[int, ...],
    strides: Sequence[int],
    before: Sequence[int],
    total: Sequence[int],
) -> relax.Expr:
    """Data with zeros between neighbours, `before` zeros before them, of `total` extents in all; as
    much as is negative is cut off."""
    n, c, *spatial = given
    pairs = [e for s in spatial for e in (s, 1)]
    gaps = [e for s in strides for e in (0, 0, 0, s - 1)]
    apart = relax.op.nn.pad(relax.op.reshape(data, [n, c, *pairs]), [0, 0, 0, 0, *gaps])
    whole = [e * s for e, s in zip(spatial, strides, strict=True)]
    value = relax.op.reshape(apart, [n, c, *whole])
    after = [t - w - b for b, t, w in zip(before, total, whole, strict=True)]
    return _fitted(value, (n, c, *whole), before, after)


def _written(call: relax.Call) -> relax.Expr:
    data, weight = call.args
    found = convolution(call)
    if found is None:
        return call
    found, weight = _met(found, data, weight, shape(call))
    if found.pointwise:
        return _pointwise(data, weight)
    if _over_patches(found, shape(data)):
        return _patches(found, data, weight)
    return _unpadded(call, found, data, weight)


def _met(
    found: Convolution, data: relax.Expr, weight: relax.Expr, out: tuple[int, ...]
) -> tuple[Convolution, relax.Expr]:
    """The convolution without the ends of its windows that meet nothing but padding, wherever a
    window is: of windows of 3 positions that lie 24 apart, on data of 14, only the middle is left.
    """
    windows, extents = found.windows, shape(data)[2:]
    parts = [
        _part_met(windows, i, e, n) for i, (e, n) in enumerate(zip(extents, out[2:], strict=True))
    ]
    kept, before, after = zip(*parts, strict=True)
    counts = tuple(map(len, kept))
    if counts == windows.extents:
        return found, weight
    less = replace(found, windows=replace(windows, extents=counts, before=before, after=after))
    known = array(weight)
    if known is None:
        axes, starts, ends = zip(
            *((2 + i, k.start, k.stop) for i, k in enumerate(kept)), strict=True
        )
        return less, relax.op.strided_slice(weight, list(axes), list(starts), list(ends))
    cut = known[(slice(None), slice(None), *(slice(k.start, k.stop) for k in kept))]
    return less, relax.const(np.ascontiguousarray(cut))


def _part_met(windows: SlidingWindows, i: int, extent: int, places: int) -> tuple[range, int, int]:
    """The positions of windows along spatial dimension `i` without the ends that meet no data of
    this extent in any of so many places, and the padding before and after that is left. All of them
    where what is left would not read all of the data."""
    count, apart, padding = windows.extents[i], windows.dilation[i], windows.before[i]
    last = (places - 1) * windows.strides[i]
    starts = [u * apart - padding for u in range(count)]
    meeting = [u for u, at in enumerate(starts) if at < extent and at + last >= 0]
    if meeting:
        first, end = min(meeting[0], padding // apart), meeting[-1] + 1
        before = padding - first * apart
        after = last + (end - 1 - first) * apart + 1 - extent - before
        if after >= 0:
            return range(first, end), before, after
    return range(count), padding, windows.after[i]


def _pointwise(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
    """Every position's channels, multiplied by the same matrix."""
    n, c, *spatial = shape(data)
    columns = relax.op.reshape(data, [n, c, math.prod(spatial)])
    matrix = relax.op.reshape(weight, list(shape(weight)[:2]))
    return relax.op.reshape(relax.op.matmul(matrix, columns), [n, shape(weight)[0], *spatial])


def _apart(windows: SlidingWindows) -> bool:
    """Whether windows lie side by side: each stride is the window's extent."""
    dense = all(d == 1 for d in windows.dilation) and windows.strides == windows.extents
    return dense and not windows.padded


def _over_patches(found: Convolution, data: tuple[int, ...]) -> bool:
    """Whether the windows are patches: they lie side by side, and nothing is left over."""
    whole = all(n % k == 0 for n, k in zip(data[2:], found.windows.extents, strict=True))
    return _apart(found.windows) and whole and found.groups == 1


def _patches(found: Convolution, data: relax.Expr, weight: relax.Expr) -> relax.Expr:
    (n, c, *spatial), (o, *_) = shape(data), shape(weight)
    rank, kernel = len(spatial), found.windows.extents
    counts = [e // k for e, k in zip(spatial, kernel, strict=True)]
    pairs = [e for pair in zip(counts, kernel, strict=True) for e in pair]
    cut = relax.op.reshape(data, [n, c, *pairs])
    outer, inner = ([2 + 2 * i + at for i in range(rank)] for at in (0, 1))
    rows = relax.op.permute_dims(cut, [0, *outer, 1, *inner])
    left = relax.op.reshape(rows, [n, math.prod(counts), c * math.prod(kernel)])
    flat = relax.op.reshape(weight, [o, c * math.prod(kernel)])
    product = relax.op.matmul(left, relax.op.permute_dims(flat, [1, 0]))
    channels = relax.op.permute_dims(product, [0, 2, 1])
    return relax.op.reshape(channels, [n, o, *counts])


def _unpadded(
    call: relax.Call, found: Convolution, data: relax.Expr, weight: relax.Expr
) -> relax.Expr:
    """The convolution of data with zeros around them."""
    windows = found.windows
    if not windows.padded and weight is call.args[1]:
        return call
    return _CONVOLVE[len(windows.extents)](
        surrounded(data, windows.before, windows.after),
        weight,
        strides=list(windows.strides),
        dilation=list(windows.dilation),
        groups=found.groups,
    )
