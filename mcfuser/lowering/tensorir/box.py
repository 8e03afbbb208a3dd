"""Boxes: copies of what a tile reads of an input with padding, zeros included.

A box is dense, with a dimension for each of the array's that the tensor moves along: one for each
padding, and one for each other digit of its positions. An element's place in it is its address in
the array, with other strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcfuser.chain import Chain, Digit, Stride, dense, digits, strides_of
from mcfuser.expr import Affine, Read
from mcfuser.space.plan import Ints
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, Load, statements


@dataclass(frozen=True, slots=True)
class MovingDigit:
    """A digit of the positions at which a dimension of a tensor is read, those of an `index`. Its
    value changes with every `unit`-th position, and wraps around unless it is the `outer` one; a
    tile has `count` values of it."""

    dimension: int
    digit: Digit
    unit: int
    outer: bool
    index: Affine
    count: Ints


@dataclass(frozen=True, slots=True)
class BoxDimension:
    """A dimension of a box: the digits that move along it, each with how far its next value lies,
    in positions of this dimension; the positions that a tile has; and the stride of one in the
    array. `padding` is the number of the tensor's padding, if it is along one."""

    moving: tuple[tuple[MovingDigit, int], ...]
    span: Ints
    stride: int
    padding: int | None


@dataclass(frozen=True)
class PaddedBox:
    """The box of a loaded tile: the tensor's name, the dimensions of the box, outermost first, and
    the strides that those of the tensor have in it."""

    name: str
    tensor: str
    dimensions: tuple[BoxDimension, ...]
    strides: tuple[Stride, ...]

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(int(d.span) for d in self.dimensions)

    @property
    def pitches(self) -> tuple[int, ...]:
        """Elements from a position to the next, along each of its dimensions."""
        return dense([int(d.span) for d in self.dimensions])

    def line(self, stride: int) -> int:
        """Elements in the box from a position to the next along the dimension that has this stride
        in the array."""
        every = zip(self.dimensions, self.pitches, strict=True)
        return next(pitch for d, pitch in every if d.stride == stride)


def boxes(schedule: Schedule) -> dict[str, PaddedBox]:
    """The boxes of a schedule's inputs with padding, by the tile that is loaded. Raises Illegal
    where a tile is loaded in two places."""
    found: dict[str, PaddedBox] = {}
    for s, outer in statements(schedule.body):
        if not isinstance(s, Load) or not schedule.chain.tensor(s.read.tensor).padding:
            continue
        if s.buffer in found:
            raise Illegal(
                f"'{s.read.tensor}' has padding, and a tile of it is loaded in two places"
            )
        found[s.buffer] = _box(schedule, s, {loop.axis for loop in outer})
    return found


def box_spans(chain: Chain, read: Read, tile: Callable[[str], Ints]) -> tuple[Ints, ...]:
    """The extents of the box of a read, outermost first, for the tiles of its axes."""
    return tuple(d.span for d in _dimensions(chain, read, tile))


def _box(schedule: Schedule, s: Load, moving: set[str]) -> PaddedBox:
    chain = schedule.chain

    def tile(a: str) -> Ints:
        return np.asarray(schedule.tile(a) if a in moving else chain.size(a))

    box = PaddedBox(s.buffer, s.read.tensor, _dimensions(chain, s.read, tile), ())
    along: list[list[tuple[int, Digit]]] = [[] for _ in s.read.indices]
    for d, pitch in zip(box.dimensions, box.pitches, strict=True):
        for m, step in d.moving:
            along[m.dimension].append((m.unit, Digit(m.digit.extent, step * pitch)))
    ordered = [[d for _, d in sorted(every, key=lambda x: -x[0])] for every in along]
    return replace(box, strides=tuple(d[0].stride if len(d) == 1 else tuple(d) for d in ordered))


def _dimensions(chain: Chain, read: Read, tile: Callable[[str], Ints]) -> tuple[BoxDimension, ...]:
    """The dimensions of the box of a read, outermost first."""
    tensor, moving = chain.tensor(read.tensor), list(_moving(chain, read, tile))
    found = []
    for i, p in enumerate(tensor.padding):
        along = tuple((m, m.digit.stride // p.stride) for m in moving if m.digit.padding == i)
        span = sum((step * (m.count - 1) for m, step in along), np.asarray(1))
        found.append(BoxDimension(along, span, p.stride, i))
    for m in moving:
        if m.digit.padding is None:
            found.append(BoxDimension(((m, 1),), m.count, m.digit.stride, None))
    return tuple(sorted(found, key=lambda d: -d.stride))


def _moving(chain: Chain, read: Read, tile: Callable[[str], Ints]) -> Iterator[MovingDigit]:
    sizes, strides = chain.shape(read.tensor), strides_of(chain, read.tensor)
    for i, (index, size, stride) in enumerate(zip(read.indices, sizes, strides, strict=True)):
        along = digits(stride, size)
        units = dense([d.extent for d in along])
        steps = (abs(c) * (tile(a) - 1) for a, c in index.terms)
        counts = _counts(along, units, size, sum(steps, np.asarray(1)))
        for j, (d, unit, count) in enumerate(zip(along, units, counts, strict=True)):
            yield MovingDigit(i, d, unit, not j, index, count)


def _counts(along: Sequence[Digit], units: Sequence[int], size: int, tile: Ints) -> Iterator[Ints]:
    """How many values of each digit the positions of a tile have, wherever it begins: tiles that
    divide what a digit counts lie within one of its values."""
    crossed = np.asarray(tile >= size)
    for d, unit in zip(along, units, strict=True):
        within = ~crossed & (unit % tile == 0)
        touched = np.where(tile % unit == 0, tile // unit, (tile + unit - 2) // unit + 1)
        yield np.where(crossed, d.extent, np.where(within, 1, np.minimum(touched, d.extent)))
        crossed = crossed | ~within
