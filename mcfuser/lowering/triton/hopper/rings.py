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
    """Tiles of a buffer in shared memory, filled through a map.

    `shape` is a tile's as it lies, a matrix; a product takes it `flipped`. Rows that a group has
    of its `own` are a tile of their own. Outside the loop each tile is filled once.
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
    """The ring of a loaded operand under the layout of one group, which divides `rows`. Raises
    Illegal where the operand has none."""
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
