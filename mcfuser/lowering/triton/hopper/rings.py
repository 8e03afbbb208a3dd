"""Rings of tiles in shared memory, through which a loader hands tiles to warp groups."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.chain import BYTES
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap, dimensions
from mcfuser.lowering.triton.instructions import HALF
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.space.statement import Illegal, Load


@dataclass(frozen=True)
class Ring:
    """Tiles of a buffer in shared memory, filled through a tensor map.

    `shape` is that of a tile in memory, a matrix; where `flipped`, a product takes its transpose.
    Where `own`, each warp group has a tile of its own rows. Where `looped`, the loop fills the
    ring's tiles again and again; else each tile is filled once, before the loop.
    """

    buffer: str
    map: TensorMap
    shape: tuple[int, int]
    flipped: bool
    own: bool
    looped: bool

    @property
    def size(self) -> int:
        """Bytes of a tile."""
        return self.shape[0] * self.shape[1] * BYTES[self.map.dtype]


def ring(layout: TileLayout, s: Load, rows: str, looped: bool) -> Ring:
    """The ring of the loaded operand of a product, under the layout of one of the warp groups that
    divide the axis `rows`. Raises Illegal where the operand cannot come through a tensor map, or is
    no matrix in half precision."""
    if s.buffer not in layout.maps:
        raise Illegal(f"'{s.buffer}' cannot be loaded through a tensor map")
    every = dimensions(layout.schedule.chain, s.read)
    tile_axes = layout.extending(a for *_, i in every if (a := i.plain))
    one = layout.maps[s.buffer]
    flipped = tile_axes != layout.space(s.buffer)
    if len(tile_axes) != 2 or {*tile_axes} != {*layout.space(s.buffer)} or one.dtype not in HALF:
        raise Illegal(f"'{s.buffer}' is no matrix in half precision")
    shape = (layout.width(tile_axes[0]), layout.width(tile_axes[1]))
    return Ring(s.buffer, one, shape, flipped, rows in tile_axes, looped)
