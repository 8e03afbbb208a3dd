"""Tensor maps: descriptions of tiles that a GPU's copy engine fetches whole. A kernel takes them as
arguments by value.

An element outside the tensor arrives as zero, which is what a masked load gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Chain
from mcfuser.expr import Affine, Read
from mcfuser.lowering.triton.address import steps, wide
from mcfuser.lowering.triton.width import IntOrInts

DTYPES = ("float16", "bfloat16", "float32")
MOST_DIMENSIONS = 5
LONGEST = 256
"""The most elements along one dimension that one instruction copies."""
ALIGNED = 16
"""What addresses, strides and the rows of a tile are multiples of, bytes."""
SWIZZLES = (0, 32, 64, 128)
"""Bytes of a row that are permuted, by the driver's number for it."""
ATOM = 8
"""Rows over which a swizzle repeats; a tile with fewer of them is not swizzled."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor and the tile of it that a kernel loads at once.

    `shape` and `strides` (elements) are of the dimensions that a tile moves along, outermost
    first, the last one contiguous, from element `offset` on; `box` is the shape of a tile.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0

    @property
    def swizzle(self) -> int:
        """How many bytes of a row are permuted among the banks of shared memory, as Triton lays
        a tile out (its NVMMASharedEncoding)."""
        row = self.box[-1] * BYTES[self.dtype]
        if math.prod(self.box[:-1]) < ATOM:
            return 0
        return max(n for n in SWIZZLES if not n or row % n == 0)

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of what one instruction copies: a row is no longer than it is swizzled."""
        row = self.swizzle // BYTES[self.dtype] if self.swizzle else self.box[-1]
        return tuple(min(n, LONGEST) for n in (*self.box[:-1], row))

    @property
    def start(self) -> int:
        """Bytes from the tensor's pointer."""
        return self.offset * BYTES[self.dtype]


Dimension = tuple[int, int, Affine]
"""Extent, step in elements, and the index at which it is read."""


def dimensions(chain: Chain, read: Read) -> tuple[Dimension, ...]:
    """The dimensions along which a tile of an input moves, the contiguous one last; none where
    an extent is known at run time only, a dimension has several digits, or there is padding."""
    tensor = chain.tensor(read.tensor)
    if tensor.padding or any(
        not isinstance(chain.extent(a), int) for i in read.indices for a in i.axes
    ):
        return ()
    every = list(zip(chain.shape(tensor.name), steps(chain, tensor), read.indices, strict=True))
    if any(step.extents or not step.whole for _, along, _ in every for step in along):
        return ()
    moving = ((n, step.number, i) for n, (step,), i in every if n > 1 and step.number)
    return tuple(sorted(moving, key=lambda d: -d[1]))


def tensor_map(chain: Chain, read: Read, width: Callable[[str], int]) -> TensorMap:
    """The map through which tiles of a `mappable` read come, `width` positions along each axis."""
    tensor = chain.tensor(read.tensor)
    shape, strides, indices = zip(*dimensions(chain, read), strict=True)
    box = tuple(width(i.axes[0]) if i.terms else 1 for i in indices)
    return TensorMap(tensor.name, tensor.dtype, shape, strides, box, tensor.offset)


def mappable(
    chain: Chain, read: Read, tile: Callable[[str], IntOrInts], width: Callable[[str], IntOrInts]
) -> NDArray[np.bool_]:
    """Whether tiles of a read, `tile` positions and `width` lanes along each axis, are matrices
    that can come through a tensor map, with no lane that a mask would hide inside the tensor.

    A tile of three dimensions that a product takes as a matrix is none: on an H200, 8 of 104 such
    kernels of Triton 3.6 were wrong (heads of a group packed into rows), and 1 of 1,570 others,
    which had no loop (model.feasible).
    """
    dims = dimensions(chain, read)
    if not _regular(chain, read, dims) or wide(chain):
        return np.asarray(False)
    tensor, last = chain.tensor(read.tensor), dims[-1][2].plain
    assert last is not None
    fits = np.asarray(np.asarray(width(last)) * BYTES[tensor.dtype] % ALIGNED == 0)
    for n, i in zip(chain.shape(tensor.name), read.indices, strict=True):
        if (a := i.plain) is not None:
            size, whole = chain.size(a), n == chain.size(a)
            inside = np.asarray(size % tile(a) == 0) | whole
            alone = np.asarray(tile(a) >= size) & whole & (n > 1)  # else the map lacks it
            fits = fits & inside & (alone | np.asarray(width(a) == tile(a)))
    long = sum(np.asarray(width(i.plain)) > 1 for *_, i in dims if i.plain is not None)
    return np.asarray(fits & (long == 2))


def _regular(chain: Chain, read: Read, dims: Sequence[Dimension]) -> bool:
    """What does not depend on tiles: an axis or a constant along every dimension, the last one
    contiguous, the others at aligned steps."""
    tensor = chain.tensor(read.tensor)
    axes = [a for i in read.indices for a in i.axes]
    if tensor.dtype not in DTYPES or not 1 < len(dims) <= MOST_DIMENSIONS:
        return False
    if any(i.terms and i.plain is None for i in read.indices) or len(set(axes)) < len(axes):
        return False
    *others, (_, least, last) = dims
    numbers = (tensor.offset, *(step for _, step, _ in others))
    aligned = not any(n * BYTES[tensor.dtype] % ALIGNED for n in numbers)
    return aligned and least == 1 and last.plain is not None
