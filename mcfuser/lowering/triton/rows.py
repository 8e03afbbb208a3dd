"""Rows of tiles that Triton moves as one dimension.

Triton makes vectors along one dimension of a tile, and threads of a warp follow each other along
that one. Two numbers for each position, such as the pairs that a rotary embedding turns, are a
short vector, and every other number is none: some releases of Triton then let the threads follow
each other along the first dimension, and 6,144 bytes lay between two of them (a tile of 8 x 4 x 64
x 2 on an H200: 24 us instead of 3.2, 2026-11-30). So a tile's last axes are moved as the row that
they are in memory, and are given their own dimensions in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcfuser.chain import BYTES, Chain, Tensor
from mcfuser.chain.merged import VECTOR
from mcfuser.expr import Affine
from mcfuser.lowering.triton.address import address

PAIR = 2


@dataclass(frozen=True, slots=True)
class TileRow:
    """The last `axes` of a tile, along which its elements lie side by side in memory.

    `beside` elements lie at each position of the first of them. Where there is no other axis, the
    tile has one of these, the one that is `picked`.
    """

    axes: tuple[str, ...]
    beside: int
    picked: int = 0

    @property
    def pairs(self) -> bool:
        """The tile has one element of each two."""
        return len(self.axes) == 1


def row_of(
    chain: Chain,
    tensor: Tensor,
    indices: Sequence[Affine],
    space: Sequence[str],
    width: Callable[[str], int],
    whole: Callable[[str], bool],
) -> TileRow | None:
    """The row of a tile with the axes `space` of a tensor at some `indices`; None where threads
    move it in vectors as it is, or it is no row. An axis has `width` lanes, and is `whole` where
    all of them are inside of it.

    Of a pair the other element is loaded, too, even past the last one of a tensor: the pair begins
    at an even element, so that no page ends within.
    """
    moves, start = address(chain, tensor, indices)
    every = [step for along in (*moves.values(), start) for step in along]
    if tensor.padding or not space or any(step.extents for step in every):
        return None
    if any(a not in moves for a in space):
        return None
    last, before = space[-1], space[-2:-1]

    def stride(a: str) -> int:
        steps = moves[a]
        return steps[0].number if len(steps) == 1 and steps[0].whole else 0

    if not whole(last):
        return None
    beside = width(last)
    if stride(last) == 1 and beside == chain.size(last) < VECTOR // BYTES[tensor.dtype]:
        joined = any(stride(a) == beside and whole(a) for a in before)
        return TileRow((*before, last), beside) if joined else None
    others = [s.number for a, along in moves.items() if a != last for s in along]
    if stride(last) == PAIR and not any(n % PAIR for n in others):
        return TileRow((last,), PAIR, sum(s.number for s in start) % PAIR)
    return None
