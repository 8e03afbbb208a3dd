"""Where a tensor's elements lie in its array, and which of them it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from mcfuser.chain.values import Chain, Stride, Tensor, digits

ChannelsLast = Literal["never", "dense", "always"]
"""Where kernels are fastest with the channels of pictures last in memory: nowhere, between dense
convolutions, or wherever convolutions read and write them."""


def dense(extents: Sequence[int]) -> tuple[int, ...]:
    """The row-major strides of a dense array, in elements."""
    return tuple(math.prod(extents[i + 1 :]) for i in range(len(extents)))


def strides_of(chain: Chain, name: str) -> tuple[Stride, ...]:
    """A tensor's strides, in elements; dense and row-major where it has none of its own."""
    strides = chain.tensor(name).strides
    return strides if strides is not None else dense(chain.shape(name))


def flat_size(chain: Chain, name: str) -> int:
    """Elements from the start of a tensor's array to its last one."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    strides = strides_of(chain, name)
    along = (d for n, s in zip(shape, strides, strict=True) for d in digits(s, n))
    moving = sum((d.extent - 1) * d.stride for d in along if d.padding is None)
    return tensor.offset + 1 + moving + sum((p.extent - 1) * p.stride for p in tensor.padding)


def last_along(tensor: Tensor, padding: int) -> int:
    """The last position along one of a tensor's paddings."""
    p = tensor.padding[padding]
    every = (d for s in tensor.strides or () if not isinstance(s, int) for d in s)
    moved = (d.stride // p.stride * (d.extent - 1) for d in every if d.padding == padding)
    return sum(moved) - p.before
