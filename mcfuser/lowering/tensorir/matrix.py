"""What a CPU's matrix unit (Intel's AMX) makes of a product.

The unit multiplies tiles of bfloat16 and sums in float32. A float32 is the sum of three bfloat16
pieces exactly, its mantissa cut into eight bits each, so a product of float32 tiles is six products
of pieces; what is left out is of relative order 2^-24, the rounding of a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, Product
from mcfuser.device import Device
from mcfuser.expr import reads
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Buffer, Compute, Loop, plain_index, statements

AMX = "amx"
"""The name of the unit that a device has (Device.matrix)."""
SIDE = 16
"""Rows, and columns, of a tile register of float32 sums."""
STEP = 32
"""Positions along the depth that an instruction multiplies."""
BLOCK = 2
"""Tile registers of sums along rows and along columns: four of eight, the others hold operands."""
PIECES: Mapping[str, int] = MappingProxyType({
    "int8": 1, "uint8": 1, "bfloat16": 1, "int16": 2, "float16": 2, "float32": 3,
})  # fmt: skip
"""The pieces of eight bits that a number's mantissa has, by its dtype."""
ORDER = ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))
"""The products of pieces, left and right, in an order in which neighbours share an operand."""


def pairs(left: int, right: int) -> tuple[tuple[int, int], ...]:
    """The products of pieces that make a product of operands with so many pieces."""
    return tuple((i, j) for i, j in ORDER if i < left and j < right)


def span(tile: Ints) -> Ints:
    """Positions of a block of sums along an axis with such tiles."""
    result: Ints = np.where(tile > SIDE, BLOCK * SIDE, SIDE)
    return result


def oriented(roles: Product) -> Product:
    """The roles with operands exchanged where only the left one has axes of its own: vectors, and
    tiles, run along columns."""
    if roles.columns:
        return roles
    return Product(roles.right, roles.left, roles.batch, (), roles.rows, roles.depth)


def last_row(roles: Product, tile: Callable[[str], Ints]) -> Ints:
    """The tile of the last row axis along which a tile has several rows; 1 where there is none."""
    rows = tile("")
    for a in roles.rows:
        rows = np.where(tile(a) > 1, tile(a), rows)
    return rows


def takes(
    s: Compute, dtypes: Collection[str], tile: Callable[[str], Ints], apart: Callable[[str], Ints]
) -> NDArray[np.bool_]:
    """Whether the unit computes a product of operands of these dtypes.

    `tile` gives the extents of an axis' tiles, 1 for a name that is none; `apart` what the extents
    must be divided by, 1 where tiles are not held side by side. Rows, columns and depth must be
    half a tile register at least, columns be contiguous in the product's own tile, and the depth
    be paired along its last axis.
    """
    roles = s.operator.product
    no = np.zeros(np.shape(tile("")), bool)
    if roles is None or not all(d in PIECES for d in dtypes):
        return no
    roles = oriented(roles)
    if s.operator.axes[-1] not in roles.columns:
        return no
    rows, columns, depth = last_row(roles, tile), tile(s.operator.axes[-1]), tile("")
    for a in roles.depth:
        depth = depth * tile(a)
    fits = (rows >= SIDE // 2) & (columns >= SIDE // 2) & (depth >= STEP // 2)
    if len(roles.depth) > 1:
        fits = fits & (tile(roles.depth[-1]) % 2 == 0)
    for a in (*roles.rows, s.operator.axes[-1]):
        fits = fits & (tile(a) % np.minimum(apart(a), span(tile(a))) == 0)
    result: NDArray[np.bool_] = fits
    return result


def operand_tiles(s: Compute) -> tuple[Product, str, str] | None:
    """The roles in a statement's product, and the tiles that it reads as its left operand and as
    its right one; None where it is no product."""
    roles = s.operator.product
    if roles is None:
        return None
    tiles = {r: t.tensor for r, t in zip(s.operator.reads, reads(s.body), strict=True)}
    roles = oriented(roles)
    return roles, tiles[roles.left], tiles[roles.right]


def operand_dtypes(chain: Chain, buffers: Mapping[str, Buffer], *tiles: str) -> tuple[str, ...]:
    """The dtypes of the memory that tiles are read from: computed ones are float32."""
    tensors = [buffers[t].tensor for t in tiles]
    return tuple(chain.tensor(t).dtype if t in chain.inputs else "float32" for t in tensors)


def matrix_products(
    plan: Plan, sizes: Sizes
) -> Iterator[tuple[Compute, tuple[Loop, ...], NDArray[np.bool_]]]:
    """The products of a plan, the loops around them, and which candidates the unit computes."""
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    whole = {plain_index(d.index) for b in buffers for d in b.dims if d.whole}

    def apart(a: str) -> Ints:
        many = sizes.trips(a) > 1 if a in whole else np.zeros(len(sizes.one), bool)
        result: Ints = np.where(many, BLOCK * SIDE, 1)
        return result

    for s, outer in statements(body):
        found = operand_tiles(s) if isinstance(s, Compute) else None
        if isinstance(s, Compute) and found is not None:
            dtypes = operand_dtypes(plan.program.chain, named, *found[1:])
            yield s, outer, takes(s, dtypes, sizes.of, apart)


def multiplies(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates have a product that the unit computes."""
    some = np.zeros(len(tiles), bool)
    for _, _, taken in matrix_products(plan, sizes_of(plan, tiles)):
        some |= taken
    return some
