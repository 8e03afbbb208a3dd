"""Where a tensor's elements lie in its array."""

from __future__ import annotations

import math

from mcfuser.chain.values import Chain, Stride, digits


def strides_of(chain: Chain, name: str) -> tuple[Stride, ...]:
    """A tensor's strides, in elements; dense and row-major where it has none of its own."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    if tensor.strides is not None:
        return tensor.strides
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def flat_size(chain: Chain, name: str) -> int:
    """Elements from the start of a tensor's array to its last one."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    strides = strides_of(chain, name)
    along = (d for n, s in zip(shape, strides, strict=True) for d in digits(s, n))
    return tensor.offset + 1 + sum((d.extent - 1) * d.stride for d in along)
