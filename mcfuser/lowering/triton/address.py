"""Where a tensor's elements lie: steps along its dimensions, which run-time extents may scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcfuser.chain import Bounds, Chain, Tensor
from mcfuser.expr import Affine


@dataclass(frozen=True, slots=True)
class Stride:
    """Elements from one position to the next: a number times the extents of some axes."""

    number: int
    extents: tuple[str, ...] = ()

    def times(self, number: int) -> Stride:
        return Stride(self.number * number, self.extents)


Moves = Mapping[str, tuple[Stride, ...]]
"""For each axis that moves an address, the steps that add up when it moves by one position."""


def steps(chain: Chain, tensor: Tensor) -> tuple[Stride, ...]:
    """The step along each dimension: as the tensor's strides say, else dense and row-major."""
    if tensor.strides is not None:
        return tuple(Stride(n) for n in tensor.strides)
    found: list[Stride] = []
    step = Stride(1)
    for d in reversed(tensor.shape):
        found.insert(0, step)
        extent = d if isinstance(d, int) else chain.extent(d)
        if isinstance(extent, Bounds):
            step = Stride(step.number, (*step.extents, str(d)))
        else:
            step = step.times(extent)
    return tuple(found)


def address(
    chain: Chain, tensor: Tensor, indices: Sequence[Affine]
) -> tuple[Moves, tuple[Stride, ...]]:
    """What moves the address of an element with each axis, and where it starts."""
    moves: dict[str, dict[tuple[str, ...], int]] = {}
    start: dict[tuple[str, ...], int] = {(): tensor.offset}
    for index, step in zip(indices, steps(chain, tensor), strict=True):
        start[step.extents] = start.get(step.extents, 0) + index.offset * step.number
        for a, c in index.terms:
            along = moves.setdefault(a, {})
            along[step.extents] = along.get(step.extents, 0) + c * step.number
    found = {a: _some(along) for a, along in moves.items()}
    return {a: some for a, some in found.items() if some}, _some(start)


def _some(numbers: Mapping[tuple[str, ...], int]) -> tuple[Stride, ...]:
    return tuple(Stride(n, extents) for extents, n in numbers.items() if n)


def reach(chain: Chain, tensor: Tensor) -> int:
    """The last element of a tensor, counted from its pointer, extents at their upper bounds."""
    found = tensor.offset
    for step, d in zip(steps(chain, tensor), tensor.shape, strict=True):
        size = d if isinstance(d, int) else chain.size(d)
        along = step.number
        for a in step.extents:
            along *= chain.size(a)
        found += max(along, 0) * (size - 1)
    return found


def wide(chain: Chain) -> bool:
    """Some tensor reaches past what 32 bits can count."""
    return any(reach(chain, chain.tensor(t)) >= 1 << 31 for t in (*chain.inputs, *chain.outputs))
