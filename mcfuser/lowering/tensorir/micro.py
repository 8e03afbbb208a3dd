"""The register micro-tile of a product on a CPU's vectors, for arrays of tiles.

A micro-tile has some rows of some vectors of columns, as many as the accumulators hold. Each step
along the depth broadcasts an element of the left operand for every row, and reads the vectors of
the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Bounds, Chain, Product, strides_of
from mcfuser.expr import Read
from mcfuser.lowering.tensorir.matrix import operand_tiles
from mcfuser.space.plan import Ints
from mcfuser.space.statement import Buffer, Compute

STACK = 1024
"""Bytes from which on TVM takes a local array from the heap, where it is no register."""
FLOAT = 4
"""Bytes of an accumulated element."""
NARROWEST = 4
"""Elements of the narrowest vectors; what fills none is computed one by one."""
WIDE = 16
"""Elements of the widest vectors."""

PAGE, PAGES = 4096, 64
"""Bytes of a page of memory, and of how many a core knows at once where they are."""
SHARED = 32
"""Rows of a left operand for which a right one is copied, so that its own rows lie close."""
LINE = 64
"""Bytes that caches read at a time."""
APART = 1024
"""Bytes between rows from which on they are not read in time where they miss the first cache."""
FEW = 4
"""Walks of a panel of which the first is a large part."""
FIRST, WAY = 32 << 10, 4096
"""Bytes of a core's first cache; lines so many bytes apart have the same place in it, which holds
FIRST / WAY of them."""
PRIVATE = 1 << 20
"""Bytes that a core's private cache holds: of a constant, few of them do beside what else they
need."""


def micro_product(chain: Chain, buffers: Mapping[str, Buffer], s: Compute) -> Product | None:
    """The roles in a product that micro-tiles compute; None for a reduction like any other, as of
    windows that no rows share."""
    found = operand_tiles(s)
    if found is None:
        return None
    roles, _, tile = found
    right = buffers[tile].tensor
    shared = bool(roles.rows) or right not in chain.inputs or chain.tensor(right).constant
    return roles if roles.columns and shared else None


def micro_vectors(columns: Ints, lanes: Ints, most: Ints) -> Ints:
    """Vectors side by side in a micro-tile, for tiles of so many columns: as many as the knobs
    have, or the most below it that divide those of the tile."""
    need = -(-columns // lanes)
    found = np.ones(np.shape(need + most), np.int64)
    for v in range(2, int(np.max(most)) + 1):
        found = np.where((v <= most) & (v <= need) & (need % v == 0), v, found)
    return found


def micro_rows(rows: Ints, held: Ints, lanes: Ints, divide: bool = False) -> Ints:
    """Rows of a micro-tile, for tiles of so many rows, where the accumulators hold `held`: the best
    by how much of the last micro-tile is padding and by how often a vector of the right operand is
    used again. They `divide` the tile's where tiles lie side by side."""
    most = np.minimum(np.minimum(held, (STACK - 1) // (FLOAT * lanes)), rows)
    found = np.ones(np.shape(most), np.int64)
    best = np.zeros(np.shape(most))
    for r in range(1, int(np.max(most)) + 1):
        used = rows / (-(-rows // r) * r) * r / (r + 1)
        better = (r <= most) & (used > best) & ((rows % r == 0) | (not divide))
        found, best = np.where(better, r, found), np.where(better, used, best)
    return found


def lie_in_panels(
    chain: Chain, roles: Product, tensor: str, column: str, tile: Callable[[str], Ints], width: Ints
) -> NDArray[np.bool_]:
    """Whether a right operand whose columns are neighbours in memory is read where it lies: panels
    of this width are whole, tiles begin where they do, and rows lie close. Else it is copied into
    panels."""
    far = _far(chain, replace(roles.right, tensor=tensor), roles, tile)
    return panels_are_whole(chain, column, tile(column), width) & ~far


def panels_are_whole(chain: Chain, column: str, tile: Ints, width: Ints) -> NDArray[np.bool_]:
    """Whether panels of this width have no columns past the extent, and tiles begin where they
    do."""
    size, fixed = chain.size(column), not isinstance(chain.extent(column), Bounds)
    aligned = (tile % width == 0) | (tile >= size)
    result: NDArray[np.bool_] = (size % width == 0) & aligned & fixed
    return result


def _far(
    chain: Chain, right: Read, roles: Product, tile: Callable[[str], Ints]
) -> NDArray[np.bool_]:
    """Whether many rows of a left operand share rows of a right one that a core does not hold
    together: on more pages than it knows the places of, or in the same few places of its first
    cache, as rows that a power of two lies between.

    An attention of 12 heads, 512 rows and 64 columns takes 0.91 to 0.95 of its time with V copied,
    whose rows are 3,072 or 9,216 bytes apart (a Xeon with AVX-512, two threads, 2026-11-27). Of
    rows 1,024 to 4,096 bytes apart, 64 or 128 at a time, products take 0.92 on average and
    attentions 0.94; of rows closer than APART 1.00 to 1.06 (12 chains, 8 or 10 candidates each; an
    EPYC with AVX2, two cores, 2026-11-28)."""
    many, pages, shared = np.asarray(1), np.asarray(1), np.asarray(1)
    for a in roles.rows:
        many = many * tile(a)
    for index, stride in zip(right.indices, strides_of(chain, right.tensor), strict=True):
        if index.plain in roles.depth and isinstance(stride, int) and stride:
            apart, count = stride * BYTES[chain.tensor(right.tensor).dtype], tile(index.plain)
            pages = pages + (count - 1) * min(apart, PAGE) / PAGE
            if apart >= APART:
                shared = shared * -(-count // (WAY // max(math.gcd(apart, WAY), LINE)))
    found: NDArray[np.bool_] = ((pages > PAGES) | (shared > FIRST // WAY)) & (many >= SHARED)
    return found


def rows_come_late(panel: int, constant: int, walks: int) -> bool:
    """Whether rows of a right operand come late unless they are fetched ahead. So many micro-tiles,
    its `walks`, read a panel, of so many bytes in a tile of the depth, one after the other. Where
    it outgrows the first cache, each of them reads it from a slower one; where the whole constant
    outgrows the private ones, the first does.

    To fetch them gains 5 to 13 % of a product's time there, of WIDE vectors, and loses 2 to 5 %
    elsewhere (a BERT, a ResNet-18, a VoVNet, and a MobileNetV2 with 1 x 1 convolutions of 48
    channels; a Xeon with AVX-512, two cores, 2026-11-27)."""
    return panel > FIRST or (constant > PRIVATE and walks <= FEW)


def holds_next(panel: int, left: int) -> bool:
    """Whether a core's private cache holds a panel of so many bytes, the next one and what it is
    multiplied with. The next one is fetched meanwhile then.

    To fetch it takes 0.80 to 0.95 of a product's time where memory has the weights, and about as
    long as not to where a nearer cache does; where they did not fit, up to 1.08 (products of a
    BERT, a MiniLM, a MobileNetV4 and a VoVNet; a Xeon with AVX-512, two cores, 2026-11-27)."""
    return 2 * panel + left <= PRIVATE
