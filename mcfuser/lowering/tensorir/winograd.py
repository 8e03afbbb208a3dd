"""What Winograd's algorithm makes of a convolution on a CPU: F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3) of
Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks".

A window of 3 x 3 positions that moves by one meets an input of 4 x 4 positions in 2 x 2 places. Of
such a piece d and the window's weights g the four results are A^T ((G g G^T) * (B^T d B)) A: 16
products of numbers, where the sums over the window have 36. Of 6 x 6 positions it is 36 products
instead of 144. G g G^T is computed when compiling, B^T d B once for all output channels, and what
the channels' products sum up to is turned back once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Bounds, Chain, Product, digits, sources, strides_of
from mcfuser.device import Device
from mcfuser.expr import Read
from mcfuser.lowering.tensorir.matrix import operand_tiles
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Buffer, Compute, Loop, statements

Rows = tuple[tuple[float, ...], ...]
TAPS = 3
"""Positions of a window along each of its axes."""


@dataclass(frozen=True, slots=True)
class Transform:
    """The matrices B^T (`turned`), G (`weights`) and A^T (`back`) of pieces of `out` x `out`
    results."""

    out: int
    turned: Rows
    weights: Rows
    back: Rows

    @property
    def span(self) -> int:
        """Positions of the input along each axis that a piece is computed from."""
        return self.out + TAPS - 1

    @property
    def numbers(self) -> int:
        """Products that a piece takes for each channel."""
        return self.span**2


TRANSFORMS: Mapping[int, Transform] = MappingProxyType({
    2: Transform(
        2,
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: Transform(
        4,
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
})  # fmt: skip
"""By the results along each axis of a piece."""


@dataclass(frozen=True, slots=True)
class Picture:
    """How the rows of a convolution, as a product, lie in its input.

    `rows` is one axis whose positions are numbered line by line, or the axis of the lines and the
    one along them; `window` are the axes of the window in that order, `channels` the others that
    are summed over. There are `pictures` of `height` lines of `width` results along `rows`, `line`
    elements from a line of the input to the next, and `step` from a position to the next: one, or
    several where the channels of a position lie side by side, those of the last of `channels`.
    """

    rows: tuple[str, ...]
    window: tuple[str, str]
    channels: tuple[str, ...]
    pictures: int
    height: int
    width: int
    line: int
    step: int

    @property
    def channels_last(self) -> bool:
        """Whether the channels of a position lie side by side, not the positions of a line."""
        return self.step > 1


def picture_of(chain: Chain, roles: Product, tensor: str) -> Picture | None:
    """The picture that the left operand, which is read from `tensor`, is a view of; None where
    Winograd's algorithm does not compute the product.

    It needs windows of 3 x 3 that move by one along lines, of which the elements lie side by side
    or the channels of each do; float32, and weights that are constants which nothing else reads.
    """
    if not _weights(chain, roles.right) or tensor not in chain.inputs:
        return None
    if chain.tensor(tensor).dtype != "float32" or any(i.plain is None for i in roles.left.indices):
        return None
    names = [i.plain or "" for i in roles.left.indices]
    if len(set(names)) < len(names) or any(isinstance(chain.extent(a), Bounds) for a in names):
        return None
    strides = dict(zip(names, strides_of(chain, tensor), strict=True))
    along_depth = [(a, digits(strides[a], chain.size(a))) for a in roles.depth]
    taps = {d[0].stride: a for a, d in along_depth if chain.size(a) == TAPS and len(d) == 1}
    steps = [(a, digits(strides[a], chain.size(a))) for a in roles.rows]
    moving = ((found[-1].stride, a) for a, found in steps if found[-1].stride in taps)
    step, across = min(moving, default=(0, ""))
    beside = next((a for a, d in along_depth if len(d) == 1 and d[0].stride == 1), "")
    if not across or (step > 1 and not beside):
        return None
    along = digits(strides[across], chain.size(across))
    rows: tuple[str, ...] = (across,)
    if len(along) > 1:
        lines, pictures = along[-2], math.prod(d.extent for d in along[:-2])
    else:
        found = ((a, d[0]) for a, d in steps if len(d) == 1 and d[0].stride in taps and a != across)
        down, lines = next(found, ("", along[0]))
        rows, pictures = (down, across), 1
    if lines.stride == step or lines.stride not in taps:
        return None
    window = taps[lines.stride], taps[step]
    channels = sorted((a for a in roles.depth if a not in window), key=lambda a: a == beside)
    return Picture(
        rows, window, tuple(channels), pictures, lines.extent, along[-1].extent, lines.stride, step
    )


def _weights(chain: Chain, right: Read) -> bool:
    """Whether the right operand is a constant that nothing else reads, as it is."""
    tensor = chain.tensor(right.tensor)
    readers = sum(r.tensor == right.tensor for o in chain.operators for r in sources(o))
    plain = all(i.plain is not None for i in right.indices)
    return tensor.constant and tensor.dtype == "float32" and plain and readers == 1


def fits(
    picture: Picture, chain: Chain, out: int, tile: Callable[[str], Ints]
) -> NDArray[np.bool_]:
    """Which tiles hold whole windows, and whole lines: as many as pieces have, `out`, or several
    times as many, unless they are a picture's last ones."""
    parted = picture.pictures > 1 and picture.height % out > 0
    found: NDArray[np.bool_] = np.full(np.shape(tile("")), not parted)
    for a in picture.window:
        found = found & (tile(a) >= TAPS)
    first = tile(picture.rows[0])
    unit = out * (picture.width if len(picture.rows) == 1 else 1)
    found = found & ((first % unit == 0) | (first >= chain.size(picture.rows[0])))
    if len(picture.rows) > 1:
        found = found & (tile(picture.rows[1]) >= picture.width)
    return found


def pieces(picture: Picture, out: int, tile: Callable[[str], Ints]) -> Ints:
    """The pieces of `out` x `out` results in a tile."""
    first = tile(picture.rows[0])
    lines = -(-first // picture.width) if len(picture.rows) == 1 else first
    result: Ints = -(-lines // out) * -(-picture.width // out)
    return result


def convolutions(
    plan: Plan, sizes: Sizes, out: int
) -> Iterator[tuple[Compute, tuple[Loop, ...], Product, Picture, NDArray[np.bool_]]]:
    """The convolutions of a plan, the loops around them, and for which candidates Winograd's
    algorithm computes them in pieces of `out` x `out` results."""
    buffers, body = plan.placed
    chain, named = plan.program.chain, {b.name: b for b in buffers}
    for s, outer in statements(body):
        found = convolution(chain, named, s) if isinstance(s, Compute) else None
        if isinstance(s, Compute) and found is not None:
            roles, picture = found
            yield s, outer, roles, picture, fits(picture, chain, out, sizes.of)


def convolution(
    chain: Chain, buffers: dict[str, Buffer], s: Compute
) -> tuple[Product, Picture] | None:
    """The roles in a statement's product, and its picture; None where it is no convolution."""
    found = operand_tiles(s)
    if found is None or s.domain is not None or not found[0].columns:
        return None
    roles, left, _ = found
    picture = picture_of(chain, roles, buffers[left].tensor)
    return None if picture is None else (roles, picture)


def convolves(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates have a convolution that it computes in whatever pieces."""
    some = np.zeros(len(tiles), bool)
    for out in TRANSFORMS:
        some |= convolved(plan, tiles, out)
    return some


def convolved(plan: Plan, tiles: Ints, out: int) -> NDArray[np.bool_]:
    """Which candidates have a convolution that Winograd's algorithm computes in pieces of `out` x
    `out` results."""
    some = np.zeros(len(tiles), bool)
    for *_, taken in convolutions(plan, sizes_of(plan, tiles), out):
        some |= taken
    return some
