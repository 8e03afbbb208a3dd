"""What the TensorIR back end takes and gives: a lowering, a function's text, packed constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcfuser.chain import Chain


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


def strides_of(chain: Chain, name: str) -> tuple[int, ...]:
    """A tensor's strides, in elements; dense and row-major where it has none of its own."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    if tensor.strides is not None:
        return tensor.strides
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def flat_size(chain: Chain, name: str) -> int:
    """Elements from the start of a tensor's array to its last one."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    strides = strides_of(chain, name)
    return tensor.offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
