"""What the TensorIR back end takes and gives: a lowering, a function's text, packed constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcfuser.lowering.tensorir.winograd import TRANSFORMS


@dataclass(frozen=True, slots=True)
class Panels:
    """A constant packed when compiling: [lead, columns/width, depth, width], zero-padded.

    `depth` and `columns` are dimensions of the tensor as the chain indexes it, and the others, in
    their order, are `lead`. A window's weights have several dimensions of depth, the last of which
    is the fastest. Where Winograd's algorithm takes them, in pieces of `out` x `out` results, the
    dimensions of the `window` are not among these, and each of the numbers that it makes of one has
    a matrix of its own: [lead, columns/width, numbers, depth, width]. Where `dot` neighbours
    along the depth are multiplied at once, they lie side by side: [lead, columns/width, depth/dot,
    width, dot].
    """

    depth: tuple[int, ...]
    columns: int
    width: int
    window: tuple[int, ...] = ()
    out: int = 0
    dot: int = 1

    def lead(self, rank: int) -> tuple[int, ...]:
        """The dimensions that are neither depth nor columns."""
        others = {*self.depth, *self.window, self.columns}
        return tuple(d for d in range(rank) if d not in others)

    def rows(self, shape: tuple[int, ...]) -> int:
        """Positions along the depth, as many as whole dot products have."""
        count = math.prod(shape[d] for d in self.depth)
        return count + -count % self.dot

    def panel(self, shape: tuple[int, ...]) -> int:
        """Elements of one panel."""
        numbers = TRANSFORMS[self.out].numbers if self.out else 1
        return numbers * self.rows(shape) * self.width

    def panels(self, shape: tuple[int, ...]) -> int:
        """Panels side by side at one position of `lead`."""
        return -(-shape[self.columns] // self.width)

    def size(self, shape: tuple[int, ...]) -> int:
        """Elements of the packed array."""
        lead = math.prod(shape[d] for d in self.lead(len(shape)))
        return lead * self.panels(shape) * self.panel(shape)


@dataclass(frozen=True)
class TensorirSource:
    """A PrimFunc's text.

    Parameters are the chain's inputs in order, the extents of the run-time axes `scalars`, which
    no array's shape shows, as 32-bit integers, and the chain's outputs.
    """

    text: str
    name: str
    packed: tuple[tuple[str, Panels], ...]
    scalars: tuple[str, ...] = ()
