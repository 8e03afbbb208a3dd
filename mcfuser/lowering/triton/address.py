"""Addresses of a tensor's elements: steps along its dimensions, which may be multiples of extents
known at run time only, or those of digits of a position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcfuser.chain import (
    Bounds,
    Chain,
    Digit,
    Padding,
    Stride,
    Tensor,
    dense,
    digits,
    flat_size,
)
from mcfuser.expr import Affine

VECTOR = 16
"""The most elements that a thread loads at once: 16 bytes of the smallest type."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a position of an axis adds to an address, in elements: the digit of the position, times
    a number, times the extents of axes.

    The digit of a position x is `x // unit % radix`; the first digit has no radix (0), and the only
    one of a position is the position itself.
    """

    number: int
    extents: tuple[str, ...] = ()
    unit: int = 1
    radix: int = 0

    def times(self, number: int) -> Step:
        return Step(self.number * number, self.extents, self.unit, self.radix)

    @property
    def whole(self) -> bool:
        """The digit is the position itself."""
        return self.unit == 1 and not self.radix

    def digit(self, position: int) -> int:
        first = position // self.unit
        return first % self.radix if self.radix else first


Moves = Mapping[str, tuple[Step, ...]]
"""For each axis that an address depends on, the steps whose sum a position of it adds."""


def steps(chain: Chain, tensor: Tensor) -> tuple[tuple[Step, ...], ...]:
    """The steps along each dimension: the tensor's own, else that of a dense row-major tensor."""
    if tensor.strides is not None:
        return tuple(tuple(_digits(stride)) for stride in tensor.strides)
    found: list[tuple[Step, ...]] = []
    step = Step(1)
    for d in reversed(tensor.shape):
        found.insert(0, (step,))
        extent = d if isinstance(d, int) else chain.extent(d)
        if isinstance(extent, Bounds):
            step = Step(step.number, (*step.extents, str(d)))
        else:
            step = step.times(extent)
    return tuple(found)


def _digits(stride: Stride) -> Iterator[Step]:
    every = digits(stride, 0)
    units = dense([d.extent for d in every])
    for i, (d, unit) in enumerate(zip(every, units, strict=True)):
        yield Step(d.stride, unit=unit, radix=d.extent if i else 0)


def address(
    chain: Chain, tensor: Tensor, indices: Sequence[Affine]
) -> tuple[Moves, tuple[Step, ...]]:
    """The address of an element read at `indices`: the steps of each axis, and those of constants,
    whose sum is the address at position 0 of all axes.

    A dimension with several digits is read along one axis, or at a constant (chain.merged).
    """
    moves: dict[str, dict[Step, int]] = {}
    first = tensor.offset - sum(p.before * p.stride for p in tensor.padding)
    start: dict[tuple[str, ...], int] = {(): first}
    for index, along in zip(indices, steps(chain, tensor), strict=True):
        for step in along:
            at = step.digit(index.offset) * step.number
            start[step.extents] = start.get(step.extents, 0) + at
            for a, c in index.terms:
                kind, found = Step(1, step.extents, step.unit, step.radix), moves.setdefault(a, {})
                found[kind] = found.get(kind, 0) + c * step.number
    nonzero = {a: tuple(k.times(n) for k, n in along.items() if n) for a, along in moves.items()}
    constants = tuple(Step(n, extents) for extents, n in start.items() if n)
    return {a: found for a, found in nonzero.items() if found}, constants


def position_along(
    chain: Chain, tensor: Tensor, indices: Sequence[Affine], padding: int
) -> tuple[Moves, tuple[Step, ...]]:
    """The same of the position along one of a tensor's paddings, which is inside the array from 0
    to its extent."""
    p = tensor.padding[padding]

    def scaled(d: Digit) -> Digit:
        return Digit(d.extent, d.stride // p.stride if d.padding == padding else 0)

    strides = tuple(
        tuple(map(scaled, digits(s, n)))
        for s, n in zip(tensor.strides or (), chain.shape(tensor.name), strict=True)
    )
    along = (Padding(p.extent, 1, p.before),)
    return address(chain, replace(tensor, strides=strides, offset=0, padding=along), indices)


def side_by_side(chain: Chain, tensor: Tensor, indices: Sequence[Affine]) -> int:
    """The elements that lie side by side from an address on that is a multiple of as many, wherever
    a tile of a read begins: a power of two, at most VECTOR. A thread loads so many at once."""
    every_digit = (d for s in tensor.strides or () for d in digits(s, 0))
    if any(d.stride == 1 and d.padding is not None for d in every_digit):
        return 1  # one of two neighbours may be past the array's end
    moves, start = address(chain, tensor, indices)
    every = [step for along in moves.values() for step in along]
    contiguous = next((s for s in every if s.number == 1 and s.unit == 1 and not s.extents), None)
    if contiguous is None:
        return 1
    others = [s.number for s in every if s is not contiguous]
    common = math.gcd(VECTOR, contiguous.radix, *others, *(s.number for s in start))
    return common & -common


def reach(chain: Chain, tensor: Tensor) -> int:
    """The offset of a tensor's last element from its pointer, in elements, with run-time extents at
    their upper bounds."""
    if tensor.padding:
        return flat_size(chain, tensor.name) - 1
    last = tensor.offset
    for along, d in zip(steps(chain, tensor), tensor.shape, strict=True):
        size = d if isinstance(d, int) else chain.size(d)
        for step in along:
            stride = step.number * math.prod(map(chain.size, step.extents))
            last += max(stride, 0) * step.digit(size - 1)
    return last


def wide(chain: Chain) -> bool:
    """Some tensor has an element at an offset that 32 bits cannot hold."""
    return any(reach(chain, chain.tensor(t)) >= 1 << 31 for t in (*chain.inputs, *chain.outputs))
