"""Which sizes the tiles of an axis have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcfuser.chain import Chain, contiguous_axes, digits, over_window, sources, strides_of

GRANULE = 16
"""Tile sizes are multiples of it (tensor cores need 16 x 16 x 16), and the extent itself."""
SIDE = 256
"""Positions along the short axes of one side of a product that are a tile at any rate."""
FINE, COARSE = 1 << 12, 256
"""Tile sizes above the first are multiples of the second: of 65,536 positions along two axes there
would be 16 million pairs of tiles."""
LARGEST = 1 << 16
"""The largest tile that is not a whole extent: a row of so many numbers fills a block's memory."""


def tile_sizes(extent: int, small: Sequence[int] = ()) -> tuple[int, ...]:
    """Multiples of 16 below the extent, and the extent: ceil(extent / 16) of them, fewer where that
    is above FINE; before them, the `small` ones below it."""
    fine = range(GRANULE, min(extent, FINE + 1), GRANULE)
    coarse = range(FINE + COARSE, min(extent, LARGEST + 1), COARSE)
    return (*(n for n in small if n < extent), *fine, *coarse, extent)


def small_tiles(chain: Chain, a: str) -> tuple[int, ...]:
    """The tiles of fewer than 16 positions that suit an axis: powers of two where no matrix product
    has it (few rows of a norm fill a device); one position along a window, and where another axis
    fills its side of every product (the heads that share keys, next to the rows of each), or others
    do together and that side is no tile (the rows of windows of a picture). A few elements that are
    only added up are one tile: of the sums of eight axes of 4 there were 3,315 plans of 131,072
    candidates."""
    sizes: tuple[int, ...] = () if _few(chain, a) else (1, 2, 4, 8)
    for o in chain.operators:
        roles = o.product
        if over_window(chain, o):
            sizes = sizes[:1] if a in o.over else sizes
            continue
        for side in (roles.rows, roles.columns, roles.depth) if roles is not None else ():
            if a in side:
                others = [chain.size(x) for x in side if x != a]
                sizes = sizes[:1] if _filled(others, chain.size(a)) else ()
    return sizes


def single(chain: Chain, a: str) -> bool:
    """Whether tiles along an axis are single positions: it numbers those of a window over a
    picture, of each of which a product adds up channels that lie side by side, a tile or more."""
    for o in chain.operators:
        if o.product is None or a not in o.product.depth:
            continue
        for r in (o.product.left, o.product.right):
            every = zip(r.indices, strides_of(chain, r.tensor), strict=True)
            apart = any(i.plain == a and len(digits(s, 1)) > 1 for i, s in every)
            beside = {*contiguous_axes(chain, r)} & {*o.product.depth}
            if apart and any(x is not None and chain.size(x) >= GRANULE for x in beside):
                return True
    return False


def _few(chain: Chain, a: str) -> bool:
    """Whether an axis has 16 positions at most, no operator's result has it, and no window lies
    along it."""
    if chain.size(a) > GRANULE or any(a in o.axes for o in chain.operators):
        return False
    return not any(over_window(chain, o) for o in chain.operators if a in o.over)


def _filled(others: Sequence[int], extent: int) -> bool:
    """Whether the other axes fill a side of a product on which an axis has this extent: one of them
    alone, or all together where the whole side is no tile."""
    rest = math.prod(others)
    return max(others, default=0) >= GRANULE or (rest >= GRANULE and rest * extent > SIDE)


def line_tiles(chain: Chain, a: str) -> tuple[int, ...]:
    """Pairs of the lines of a picture whose positions are numbered line by line along an axis."""
    found = set[int]()
    for o in chain.operators:
        for r in sources(o):
            for index, stride in zip(r.indices, strides_of(chain, r.tensor), strict=True):
                along = digits(stride, 1)
                if index.plain == a and len(along) > 1:
                    found.add(2 * along[-1].extent)
    return tuple(n for unit in sorted(found) for n in range(unit, chain.size(a), unit))


def windowed(chain: Chain, axes: Sequence[str]) -> frozenset[str]:
    """Those of the axes that lie along windows, of which tiles are single positions or several."""
    along = {a for o in chain.operators if over_window(chain, o) for a in o.over}
    return frozenset(
        a for a in axes if a in along and chain.size(a) > 1 and small_tiles(chain, a) != ()
    )
