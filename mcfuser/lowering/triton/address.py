"""Addresses of a tensor's elements: strides along its dimensions, which may be multiples of extents
known at run time only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcfuser.chain import Bounds, Chain, Tensor
from mcfuser.expr import Affine


@dataclass(frozen=True, slots=True)
class Stride:
    """Elements from one position of an axis to the next: a number times the extents of axes."""

    number: int
    extents: tuple[str, ...] = ()

    def times(self, number: int) -> Stride:
        return Stride(self.number * number, self.extents)


Moves = Mapping[str, tuple[Stride, ...]]
"""For each axis that an address depends on, the strides whose sum one position of it adds."""


def steps(chain: Chain, tensor: Tensor) -> tuple[Stride, ...]:
    """The stride along each dimension: the tensor's own, else that of a dense row-major tensor."""
    if tensor.strides is not None:
        return tuple(Stride(n) for n in tensor.strides)
    strides: list[Stride] = []
    stride = Stride(1)
    for d in reversed(tensor.shape):
        strides.insert(0, stride)
        extent = d if isinstance(d, int) else chain.extent(d)
        if isinstance(extent, Bounds):
            stride = Stride(stride.number, (*stride.extents, str(d)))
        else:
            stride = stride.times(extent)
    return tuple(strides)


def address(
    chain: Chain, tensor: Tensor, indices: Sequence[Affine]
) -> tuple[Moves, tuple[Stride, ...]]:
    """The address of an element read at `indices`: the strides of each axis, and the strides of
    constants, whose sum is the address at position 0 of all axes."""
    moves: dict[str, dict[tuple[str, ...], int]] = {}
    start: dict[tuple[str, ...], int] = {(): tensor.offset}
    for index, step in zip(indices, steps(chain, tensor), strict=True):
        start[step.extents] = start.get(step.extents, 0) + index.offset * step.number
        for a, c in index.terms:
            along = moves.setdefault(a, {})
            along[step.extents] = along.get(step.extents, 0) + c * step.number
    nonzero = {a: _some(along) for a, along in moves.items()}
    return {a: strides for a, strides in nonzero.items() if strides}, _some(start)


def _some(numbers: Mapping[tuple[str, ...], int]) -> tuple[Stride, ...]:
    return tuple(Stride(n, extents) for extents, n in numbers.items() if n)


def reach(chain: Chain, tensor: Tensor) -> int:
    """The offset of a tensor's last element from its pointer, in elements, with run-time extents at
    their upper bounds."""
    last = tensor.offset
    for step, d in zip(steps(chain, tensor), tensor.shape, strict=True):
        size = d if isinstance(d, int) else chain.size(d)
        along = step.number
        for a in step.extents:
            along *= chain.size(a)
        last += max(along, 0) * (size - 1)
    return last


def wide(chain: Chain) -> bool:
    """Some tensor has an element at an offset that 32 bits cannot hold."""
    return any(reach(chain, chain.tensor(t)) >= 1 << 31 for t in (*chain.inputs, *chain.outputs))
