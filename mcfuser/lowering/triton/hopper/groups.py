"""Warp specialisation: one warp loads, and warp groups of four warps each compute their own rows.

A block's tile of rows is divided among the warp groups, 64 rows each. Tiles that a loop loads go
through rings in shared memory; barriers say when a tile is full and when it may be filled again.
So no warp group waits for another: while one computes exponentials, the products of another keep
the tensor cores busy. Deferred products (`lowering.deferred`) are issued one iteration later,
together with the next iteration's other product, so that they run while their own warp group
computes exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mcfuser.chain import Bounds, Product
from mcfuser.expr import Read
from mcfuser.lowering.deferred import deferred, only_scaled
from mcfuser.lowering.loops import around_loop
from mcfuser.lowering.triton.hopper.rings import Ring, ring
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap, mappable, tensor_map
from mcfuser.lowering.triton.instructions import ROWS, THREADS, WIDEST
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.products import row_axes
from mcfuser.lowering.triton.width import IntOrInts
from mcfuser.lowering.uses import reads_of
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Illegal, Load, Loop, Statement, Store, statements

COUNTS = (2, 3, 4)
"""Warp groups that compute in a block."""
REGISTERS = {2: 240, 3: 160, 4: 112}
"""Registers of a thread that computes: what the multiprocessor has, less those of the loader."""
OVERHEAD = 30
"""Registers that a thread needs besides its tiles: for rows, addresses and values under way."""
LOADER = 24
"""Registers of a thread that loads, the least that may be asked for."""


@dataclass(frozen=True)
class WarpGroups:
    """A schedule that warp groups compute: `whole` is the block's, `layout` that of one warp group,
    `stages` the tiles of a ring.

    The properties raise Illegal where the schedule cannot be divided among warp groups.
    """

    whole: Schedule
    stages: int

    @cached_property
    def rows(self) -> str:
        """The axis whose positions the warp groups divide among themselves."""
        layout = TileLayout(self.whole)
        axes = row_axes(layout.dots.values(), lambda a: not layout.scalar(a))
        if len(axes) != 1:
            raise Illegal("warp groups divide the rows of products, and these are not one axis")
        (a,) = axes
        every = (s for s, _ in statements(self.whole.body))
        if any(isinstance(s, Compute) and a in s.operator.over for s in every):
            raise Illegal(f"something is reduced over '{a}', of which each group has a part")
        return a

    @cached_property
    def count(self) -> int:
        groups, rest = divmod(self.whole.tile(self.rows), ROWS)
        if rest or groups not in COUNTS:
            tile = self.whole.tile(self.rows)
            raise Illegal(f"{tile} rows are not those of {COUNTS[0]} to {COUNTS[-1]} warp groups")
        return groups

    @property
    def threads(self) -> int:
        """Threads of a block: those of its warp groups, and of one more, of which one warp
        loads."""
        return THREADS * (self.count + 1)

    @cached_property
    def layout(self) -> TileLayout:
        """The layout of the tiles of one warp group."""
        _ = self.count
        tiles = tuple((a, ROWS if a == self.rows else t) for a, t in self.whole.tiles)
        return TileLayout(replace(self.whole, tiles=tiles), tma=True)

    # --- the loop

    @cached_property
    def loop(self) -> Loop:
        """The loop whose iterations the rings hold."""
        around = [outer for s, outer in statements(self.whole.body) if isinstance(s, Compute)]
        serial = {loop for outer in around for loop in outer if loop.kind == "serial"}
        iterating = [x for x in serial if self.whole.trips(x.axis) > 1]
        if len(iterating) != 1:
            raise Illegal(f"warp groups want one loop, and there are {len(iterating)}")
        if iterating[0].axis == self.rows or self.layout.written_out(iterating[0]):
            raise Illegal(f"the loop over '{iterating[0].axis}' must be written out")
        return iterating[0]

    @cached_property
    def around(self) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """The statements of a warp group before the loop, and those after it."""
        if self.whole.split is not None:
            raise Illegal("warp groups do not run parts of a split")
        parts = around_loop(self.whole.body)
        if parts is None or parts[1] != self.loop:
            raise Illegal("warp groups want one loop, around everything that is repeated")
        return parts[0], parts[2]

    @cached_property
    def body(self) -> tuple[Statement, ...]:
        """The statements of one iteration."""
        return tuple(s for s, _ in statements(self.loop.body))

    # --- shared memory

    @cached_property
    def rings(self) -> dict[str, Ring]:
        """The rings of all loaded operands of products, by buffer."""
        inside = {s.buffer for s in self.body if isinstance(s, Load)}
        rings, dots = dict[str, Ring](), self.layout.dots
        for name, s in self.layout.loads.items():
            if name in self.layout.operands:
                rings[name] = ring(self.layout, s, self.rows, name in inside)
            elif name in inside and len(self.layout.space(name)) > 1:
                raise Illegal(f"'{name}' is loaded in a loop, and not as an operand of a product")
        others = [s for s, _ in statements(self.whole.body) if isinstance(s, Compute)]
        for other in others:
            read = {r.tensor for r in reads_of(other)} if other.buffer not in dots else set()
            if shared := read & {*rings}:
                raise Illegal(f"'{shared.pop()}' is read by a product and by something else")
        return rings

    @cached_property
    def stored(self) -> dict[str, tuple[str, TensorMap]]:
        """Outputs that are stored through a tensor map, from the place in shared memory of an
        operand of the same shape that is not read any more: by buffer, that operand and the map."""
        outside = [s for s, _ in statements(self.whole.body) if s not in self.body]
        later = [self.layout.dots.get(s.buffer) for s in outside if isinstance(s, Compute)]
        read = {r.tensor for roles in later if roles for r in (roles.left, roles.right)}
        free = {
            r.map.box: n for n, r in self.rings.items()
            if r.own and not r.looped and n not in read
        }  # fmt: skip
        for s in outside:
            if not isinstance(s, Store):
                continue
            layout, one = self.layout, self.written(s)
            if mappable(self.whole.chain, one, layout.schedule.tile, layout.width):
                through = tensor_map(self.whole.chain, one, layout.width)
                name = free.get(through.box)
                if name is not None and self.rings[name].map.dtype == through.dtype:
                    return {s.buffer: (name, through)}
        return {}

    def written(self, s: Store) -> Read:
        """The read of an output that has the indices of its stored tile."""
        return Read(s.tensor, tuple(d.index for d in self.whole.buffer(s.buffer).dims))

    # --- products

    @cached_property
    def columns(self) -> int:
        """Columns of one instruction. All tiles of a warp group have one layout, so that the rows
        of one tile are in the same threads as those of another."""
        return min([WIDEST, *(self._columns(out, r) for out, r in self.layout.dots.items())])

    def _columns(self, out: str, roles: Product) -> int:
        layout = self.layout
        batch, columns, depth = map(layout.extending, (roles.batch, roles.columns, roles.depth))
        if batch or len(columns) != 1 or len(depth) != 1:
            raise Illegal(f"'{out}' is no product of two matrices")
        if layout.space(out) != (self.rows, *columns):
            raise Illegal(f"the tile of '{out}' is not laid out row by row")
        if roles.right.tensor not in self.rings:
            raise Illegal(f"the right operand of '{out}' is not loaded")
        return layout.width(columns[0])

    @cached_property
    def dots(self) -> tuple[Compute, ...]:
        """The products of the loop, in their order."""
        every = (s for s in self.body if isinstance(s, Compute))
        return tuple(s for s in every if s.buffer in self.layout.dots)

    @cached_property
    def deferred(self) -> frozenset[str]:
        """The products of the loop that are issued one iteration later.

        They are its deferred products (`lowering.deferred`), where these are all of its products
        but one and a thread has the registers to hold their operands; else none. Raises Illegal
        where a thread has too few registers for the products alone.
        """
        if (held := self.registers()) > REGISTERS[self.count]:
            raise Illegal(f"a thread of {self.count} warp groups has no {held} registers")
        products = deferred(self.body, self.loop.axis, self.layout.dots)
        if len(self.dots) != len(products) + 1 or self.registers(products) > REGISTERS[self.count]:
            return frozenset()
        if self.stages == 1 and self.dots[0] in products:
            return frozenset()  # a loader would wait for its tile before it fetches the other's
        return frozenset(s.buffer for s in products)

    def registers(self, deferred: Sequence[Compute] = ()) -> int:
        """Registers of a thread that holds all products of the loop and the left operands of the
        deferred ones at once."""
        return int(self.held(self.layout.width, deferred))

    def held(
        self, width: Callable[[str], IntOrInts], deferred: Sequence[Compute] = ()
    ) -> IntOrInts:
        """The registers of such a thread, where tiles have these widths along the axes: of one
        candidate, or an array over many."""
        lefts = [self.layout.dots[s.buffer].left.tensor for s in deferred]
        tiles = [(s.buffer, 4) for s in self.dots] + [(n, 2) for n in lefts]
        total: IntOrInts = sum(n * math.prod(map(width, self.layout.space(b))) for b, n in tiles)
        return total // (4 * THREADS) + OVERHEAD

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The buffers of sums over the loop's axis of which each thread keeps a partial sum until
        the loop has ended, since no statement of an iteration needs the whole sum."""
        buffers = []
        for s in self.body:
            if not isinstance(s, Compute) or s.buffer in self.layout.dots:
                continue
            over = self.layout.extending(s.operator.over)
            alone = self.layout.space(s.buffer) == (self.rows,) and over == (self.loop.axis,)
            if s.operator.reduce == "sum" and alone and only_scaled(self.body, s):
                buffers.append(s.buffer)
        return tuple(buffers)

    def readers(self, name: str) -> list[str]:
        """The products of the loop that read a buffer, the deferred ones last."""
        roles = self.layout.dots
        products = [
            s.buffer for s in self.dots
            if name in (roles[s.buffer].left.tensor, roles[s.buffer].right.tensor)
        ]  # fmt: skip
        return sorted(products, key=self.deferred.__contains__)

    # --- how tiles are shared among threads

    def arrangement(self, space: Sequence[str]) -> str:
        """The name of the layout that a tile over some axes has in a warp group: `TILE` for a tile
        like those of its products, `ROWS` or `COLUMNS` for vectors. Raises Illegal for any
        other."""
        if len(space) > 2 or (len(space) == 2 and space[0] != self.rows):
            raise Illegal(f"a warp group's tile over {', '.join(space)} is not laid out row by row")
        if len(space) == 2:
            return "TILE"
        return "ROWS" if tuple(space) == (self.rows,) else "COLUMNS"

    def check_extents(self) -> None:
        """Raises Illegal where extents are known at run time only or positions need 64 bits."""
        chain = self.whole.chain
        if any(isinstance(a.extent, Bounds) for a in chain.axes) or self.layout.wide:
            raise Illegal("warp groups want extents that are known, below 2^31 elements")
