"""What the TensorIR back end takes and gives: a lowering, a function's text, packed constants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panels:
    """A constant matrix packed when compiling: [columns/width, depth, width], zero-padded.

    `depth` and `columns` are the dimensions of the tensor as the chain indexes it.
    """

    depth: int
    columns: int
    width: int

    def size(self, shape: tuple[int, ...]) -> int:
        """Elements of the packed array."""
        return -(-shape[self.columns] // self.width) * shape[self.depth] * self.width


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
