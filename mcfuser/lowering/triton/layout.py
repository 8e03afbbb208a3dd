"""What is decided about a kernel before a line of it is written: which statements are matrix
products for the tensor cores, the width of each axis, and the order of the axes of each tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mcfuser.chain import Product, Tensor
from mcfuser.expr import Affine, Expr
from mcfuser.lowering.loops import kept, written_out
from mcfuser.lowering.triton.address import address, wide
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap, mappable, tensor_map
from mcfuser.lowering.triton.matrix import MatrixAxes, matrices
from mcfuser.lowering.triton.precision import THREADS
from mcfuser.lowering.triton.products import operand_dtype, products
from mcfuser.lowering.triton.rows import TileRow, row_of
from mcfuser.lowering.triton.width import widths
from mcfuser.lowering.uses import reads_of
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Buffer,
    Compute,
    Illegal,
    Load,
    Loop,
    statements,
)

MOST = 1 << 20
"""The most elements of a tile that Triton accepts."""


@dataclass(frozen=True)
class TileLayout:
    """Widths, orders of axes and tensor maps of a schedule's tiles under Triton; with `tma`,
    operands of products come through tensor maps where they can. Products of float32 operands are
    computed as `dot` says (`precision`). Raises Illegal where a tile has more elements than Triton
    accepts."""

    schedule: Schedule
    tma: bool = False
    dot: str = THREADS

    def __post_init__(self) -> None:
        for b in self.schedule.buffers:
            if math.prod(self.width(a) for a in self.space(b.name)) > MOST:
                raise Illegal(f"tile '{b.name}' has more than {MOST} elements")

    # --- products

    @cached_property
    def _buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.schedule.buffers}

    @cached_property
    def dots(self) -> dict[str, Product]:
        """The matrix products by operator, their reads in terms of buffers."""
        return products(self.schedule.chain, self._buffers, self.schedule.body)

    def operand_dtype(self, e: Expr) -> str:
        """The type in which a side of a product enters it."""
        return operand_dtype(self.schedule.chain, self._buffers, e)

    # --- axes

    @cached_property
    def widths(self) -> dict[str, int]:
        """Lanes by axis: a power of two, and enough of them for every product."""
        lanes = widths(self.schedule.chain, self.dots.values(), self.schedule.tile)
        return {a: int(n) for a, n in lanes.items()}

    def width(self, a: str) -> int:
        return self.widths[a]

    def scalar(self, a: str) -> bool:
        """The axis takes one position an iteration: a number, no dimension of any tile."""
        return self.widths[a] == 1

    def extending(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Those of some axes that are dimensions of a tile."""
        return tuple(a for a in axes if not self.scalar(a))

    @cached_property
    def wide(self) -> bool:
        """Positions are counted in 64 bits."""
        return wide(self.schedule.chain)

    # --- tiles

    def space(self, name: str) -> tuple[str, ...]:
        """The axes along which a buffer's tile extends, in the order of its dimensions."""
        if name not in self._spaces:
            self._spaces[name] = self._space(name)
        return self._spaces[name]

    @cached_property
    def _spaces(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _space(self, name: str) -> tuple[str, ...]:
        if name in self.loads:
            read, chain = self.loads[name].read, self.schedule.chain
            moves, _ = address(chain, chain.tensor(read.tensor), read.indices)
            return self.extending(a for a in self._wanted(name) if a in moves)
        dims = self.schedule.buffer(name).dims
        return self.extending(a for d in dims for a in d.index.axes)

    @cached_property
    def loads(self) -> dict[str, Load]:
        return {s.buffer: s for s, _ in statements(self.schedule.body) if isinstance(s, Load)}

    @cached_property
    def operands(self) -> frozenset[str]:
        """Buffers that enter a matrix product as they are."""
        return frozenset(r.tensor for d in self.dots.values() for r in (d.left, d.right))

    @cached_property
    def maps(self) -> dict[str, TensorMap]:
        """The tensor maps through which buffers are loaded: those of operands of matrix products,
        which are in shared memory anyway."""
        chain, tile = self.schedule.chain, self.schedule.tile
        reads = {n: s.read for n, s in self.loads.items() if self.tma and n in self.operands}
        return {
            name: tensor_map(chain, read, self.width)
            for name, read in reads.items() if mappable(chain, read, tile, self.width)
        }  # fmt: skip

    @cached_property
    def matrices(self) -> dict[str, MatrixAxes]:
        """The buffers that are loaded as matrices; their tiles have the dimensions of these."""
        through = {n: s for n, s in self.loads.items() if n not in self.maps}
        computed = [s for s, _ in statements(self.schedule.body) if isinstance(s, Compute)]
        return matrices(self.schedule.chain, through, computed, self.dots, self.extending)

    def row(
        self, tensor: Tensor, indices: Sequence[Affine], space: Sequence[str]
    ) -> TileRow | None:
        """The row as which a tile between memory and registers is moved; None where it is moved as
        it is. Products take their operands, and give their results, as matrices."""
        if self.dots:
            return None
        return row_of(self.schedule.chain, tensor, indices, space, self.width, self._whole)

    def _whole(self, a: str) -> bool:
        """All lanes of an axis are inside of it."""
        known = isinstance(self.schedule.chain.extent(a), int)
        return known and self.width(a) == self.schedule.tile(a) and not self.schedule.ragged(a)

    def _wanted(self, name: str) -> tuple[str, ...]:
        """The order in which the first reader wants the axes of a loaded tile."""
        for s, _ in statements(self.schedule.body):
            if not isinstance(s, Compute) or name not in {r.tensor for r in reads_of(s)}:
                continue
            roles = self.dots.get(s.operator.out)
            if roles is not None and roles.left.tensor == name:
                return roles.batch + roles.rows + roles.depth
            if roles is not None and roles.right.tensor == name:
                return roles.batch + roles.depth + roles.columns
            return s.operator.related
        return tuple(a for i in self.loads[name].read.indices for a in i.axes)

    def workspace(self, name: str) -> Tensor:
        """The tensor in which one part of a split stores its partial result of a reduction. Extents
        known at run time only are at their upper bounds."""
        chain, buffer = self.schedule.chain, self.schedule.buffer(name)
        shape = tuple(chain.size(a) for d in buffer.dims for a in d.index.axes)
        return Tensor(self.unused_name(f"{name}_parts"), shape, buffer.dtype)

    def unused_name(self, wish: str) -> str:
        """A name that no tensor of the chain has: `wish`, with underscores added where needed."""
        while any(t.name == wish for t in self.schedule.chain.tensors):
            wish += "_"
        return wish

    # --- loops

    def kept(self, name: str) -> tuple[str, ...]:
        """The axes of which a buffer holds several tiles."""
        return kept(self.schedule.buffer(name), self._several)

    def written_out(self, loop: Loop) -> bool:
        """The loop is unrolled in the source."""
        return written_out(self.schedule.chain, loop, self._buffers, self._several)

    def _several(self, a: str) -> bool:
        return self.schedule.trips(a) > 1
