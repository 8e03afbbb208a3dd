"""Warps with work of their own: one of them loads, and groups of four compute rows of their own.

A block's tile of rows is divided among the groups, 64 each. What a loop loads goes through rings
of tiles in shared memory, each with barriers that say when it is full and when it may be filled
again, so no group waits for another one: while one is at its exponentials, another's products
keep the tensor cores busy. Deferred products (`lowering.deferred`) are issued one iteration late,
beside the next iteration's other product, so that they run while a group is at its own
exponentials.
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
"""Groups in a block."""
REGISTERS = {2: 240, 3: 160, 4: 112}
"""Registers of a thread that computes: what the multiprocessor has, less those of the loader."""
OVERHEAD = 30
"""Registers of a thread for rows, addresses and what is under way; more tiles than fit spill."""
LOADER = 24
"""Registers of a thread that loads, the least that may be asked for."""


@dataclass(frozen=True)
class WarpGroups:
    """A block's schedule, and the same with the rows of one group.

    Raises Illegal where a schedule does not divide so.
    """

    whole: Schedule
    stages: int

    @cached_property
    def rows(self) -> str:
        """The axis along which groups divide the block."""
        layout = TileLayout(self.whole)
        found = row_axes(layout.dots.values(), lambda a: not layout.scalar(a))
        if len(found) != 1:
            raise Illegal("warp groups divide the rows of products, and these are not one axis")
        (a,) = found
        every = (s for s, _ in statements(self.whole.body))
        if any(isinstance(s, Compute) and a in s.operator.over for s in every):
            raise Illegal(f"something is reduced over '{a}', of which each group has a part")
        return a

    @cached_property
    def count(self) -> int:
        found, rest = divmod(self.whole.tile(self.rows), ROWS)
        if rest or found not in COUNTS:
            tile = self.whole.tile(self.rows)
            raise Illegal(f"{tile} rows are not those of {COUNTS[0]} to {COUNTS[-1]} warp groups")
        return found

    @property
    def threads(self) -> int:
        """Of a block: of its groups, and of another one, of which one warp loads."""
        return THREADS * (self.count + 1)

    @cached_property
    def layout(self) -> TileLayout:
        """That of one group."""
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
        """What a group does before and after the loop."""
        if self.whole.split is not None:
            raise Illegal("warp groups do not run parts of a split")
        found = around_loop(self.whole.body)
        if found is None or found[1] != self.loop:
            raise Illegal("warp groups want one loop, around everything that is repeated")
        return found[0], found[2]

    @cached_property
    def body(self) -> tuple[Statement, ...]:
        """What an iteration does."""
        return tuple(s for s, _ in statements(self.loop.body))

    # --- shared memory

    @cached_property
    def rings(self) -> dict[str, Ring]:
        """By buffer: all operands of products that are loaded."""
        inside = {s.buffer for s in self.body if isinstance(s, Load)}
        found, dots = dict[str, Ring](), self.layout.dots
        for name, s in self.layout.loads.items():
            if name in self.layout.operands:
                found[name] = ring(self.layout, s, self.rows, name in inside)
            elif name in inside and len(self.layout.space(name)) > 1:
                raise Illegal(f"'{name}' is loaded in a loop, and not as an operand of a product")
        others = [s for s, _ in statements(self.whole.body) if isinstance(s, Compute)]
        for other in others:
            read = {r.tensor for r in reads_of(other)} if other.buffer not in dots else set()
            if shared := read & {*found}:
                raise Illegal(f"'{shared.pop()}' is read by a product and by something else")
        return found

    @cached_property
    def stored(self) -> dict[str, tuple[str, TensorMap]]:
        """Outputs whose tiles leave through a map, from where an operand has lain that has the same
        form and is read no more; by buffer, that operand."""
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
        """An output's tile, as one would read it."""
        return Read(s.tensor, tuple(d.index for d in self.whole.buffer(s.buffer).dims))

    # --- products

    @cached_property
    def columns(self) -> int:
        """Columns of one instruction: all tiles of a group lie alike, so rows of one fit another's
        without a move."""
        return min([WIDEST, *(self._columns(out, r) for out, r in self.layout.dots.items())])

    def _columns(self, out: str, roles: Product) -> int:
        layout = self.layout
        batch, columns, depth = map(layout.extending, (roles.batch, roles.columns, roles.depth))
        if batch or len(columns) != 1 or len(depth) != 1:
            raise Illegal(f"'{out}' is no product of two matrices")
        if layout.space(out) != (self.rows, *columns):
            raise Illegal(f"'{out}' does not lie row by row")
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
        """Products of the loop that are issued one iteration late: the deferred ones, where they
        are all of its products but one and a thread has the registers for that; else none.

        Raises Illegal where a thread has too few registers for the products alone."""
        if (held := self.registers()) > REGISTERS[self.count]:
            raise Illegal(f"a thread of {self.count} warp groups has no {held} registers")
        found = deferred(self.body, self.loop.axis, self.layout.dots)
        if len(self.dots) != len(found) + 1 or self.registers(found) > REGISTERS[self.count]:
            return frozenset()
        if self.stages == 1 and self.dots[0] in found:
            return frozenset()  # a loader would wait for its tile before it fetches the other's
        return frozenset(s.buffer for s in found)

    def registers(self, deferred: Sequence[Compute] = ()) -> int:
        """Of a thread that holds all products of the loop, and what enters the late ones, at
        once."""
        return int(self.held(self.layout.width, deferred))

    def held(
        self, width: Callable[[str], IntOrInts], deferred: Sequence[Compute] = ()
    ) -> IntOrInts:
        """The same where tiles are so wide, for one candidate or for many at once."""
        lefts = [self.layout.dots[s.buffer].left.tensor for s in deferred]
        tiles = [(s.buffer, 4) for s in self.dots] + [(n, 2) for n in lefts]
        total: IntOrInts = sum(n * math.prod(map(width, self.layout.space(b))) for b, n in tiles)
        return total // (4 * THREADS) + OVERHEAD

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Sums over the loop's axis of which each thread keeps a part until the loop has ended, for
        nothing in an iteration needs them; their buffers."""
        found = []
        for s in self.body:
            if not isinstance(s, Compute) or s.buffer in self.layout.dots:
                continue
            over = self.layout.extending(s.operator.over)
            alone = self.layout.space(s.buffer) == (self.rows,) and over == (self.loop.axis,)
            if s.operator.reduce == "sum" and alone and only_scaled(self.body, s):
                found.append(s.buffer)
        return tuple(found)

    def readers(self, name: str) -> list[str]:
        """The products of the loop that read a buffer, the late ones last."""
        roles = self.layout.dots
        found = [
            s.buffer for s in self.dots
            if name in (roles[s.buffer].left.tensor, roles[s.buffer].right.tensor)
        ]  # fmt: skip
        return sorted(found, key=self.deferred.__contains__)

    # --- how tiles are shared among threads

    def arrangement(self, space: Sequence[str]) -> str:
        """The name of the layout in which a group's threads share a tile over some axes: that of
        its products' tiles, or of their rows or columns. Raises Illegal for any other tile."""
        if len(space) > 2 or (len(space) == 2 and space[0] != self.rows):
            raise Illegal(f"a group's tile over {', '.join(space)} does not lie row by row")
        if len(space) == 2:
            return "TILE"
        return "ROWS" if tuple(space) == (self.rows,) else "COLUMNS"

    def check_extents(self) -> None:
        """Raises Illegal where extents are known at run time only or positions need 64 bits."""
        chain = self.whole.chain
        if any(isinstance(a.extent, Bounds) for a in chain.axes) or self.layout.wide:
            raise Illegal("warp groups want extents that are known, below 2^31 elements")
