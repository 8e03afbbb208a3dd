"""Warps with work of their own: one of them loads, and groups of four compute rows of their own.

A block's tile of rows is divided among the groups, 64 each. What a loop loads goes through rings
of tiles in shared memory, each with barriers that say when it is full and when it may be filled
again, so no group waits for another one: while one is at its exponentials, another's products
keep the tensor cores busy. A product whose left operand is computed is issued one turn late,
beside the next turn's first product, so that it runs while a group is at its own exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mcfuser.chain import BYTES, Product
from mcfuser.expr import Call, Expr, Read, reads
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap, dimensions, mappable, tensor_map
from mcfuser.lowering.triton.instructions import HALF, ROWS, THREADS, WIDEST
from mcfuser.lowering.triton.layout import Layout
from mcfuser.lowering.uses import reads_of, touched
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Compute,
    Illegal,
    Load,
    Loop,
    Repair,
    Statement,
    Store,
    statements,
)

COUNTS = (2, 3, 4)
"""Groups in a block."""
REGISTERS = {2: 240, 3: 160, 4: 112}
"""Registers of a thread that computes: what the multiprocessor has, less those of the loader."""
BESIDE = 30
"""Registers of a thread for rows, addresses and what is under way; more tiles than fit spill."""
LOADER = 24
"""Registers of a thread that loads, the least that may be asked for."""


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


@dataclass(frozen=True)
class Groups:
    """A block's schedule, and the same with the rows of one group.

    Raises Illegal where a schedule does not divide so.
    """

    whole: Schedule
    stages: int

    @cached_property
    def rows(self) -> str:
        """The axis along which groups divide the block."""
        layout = Layout(self.whole)
        found = {a for d in layout.dots.values() for a in layout.extending(d.rows)}
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
    def layout(self) -> Layout:
        """That of one group."""
        _ = self.count
        tiles = tuple((a, ROWS if a == self.rows else t) for a, t in self.whole.tiles)
        return Layout(replace(self.whole, tiles=tiles), tma=True)

    @cached_property
    def loop(self) -> Loop:
        """The loop whose turns the rings hold."""
        around = [outer for s, outer in statements(self.whole.body) if isinstance(s, Compute)]
        serial = {loop for outer in around for loop in outer if loop.kind == "serial"}
        turning = [x for x in serial if self.whole.trips(x.axis) > 1]
        if len(turning) != 1:
            raise Illegal(f"warp groups want one loop, and there are {len(turning)}")
        if turning[0].axis == self.rows or self.layout.written_out(turning[0]):
            raise Illegal(f"the loop over '{turning[0].axis}' must be written out")
        return turning[0]

    @cached_property
    def body(self) -> tuple[Statement, ...]:
        """What a turn does."""
        return tuple(s for s, _ in statements(self.loop.body))

    @cached_property
    def rings(self) -> dict[str, Ring]:
        """By buffer: all operands of products that are loaded."""
        inside = {s.buffer for s in self.body if isinstance(s, Load)}
        found, dots = dict[str, Ring](), self.layout.dots
        for name, s in self.layout.loads.items():
            if name in self.layout.operands:
                found[name] = self._ring(s, name in inside)
            elif name in inside and len(self.layout.space(name)) > 1:
                raise Illegal(f"'{name}' is loaded in a loop, and not as an operand of a product")
        others = [s for s, _ in statements(self.whole.body) if isinstance(s, Compute)]
        for other in others:
            read = {r.tensor for r in reads_of(other)} if other.buffer not in dots else set()
            if shared := read & {*found}:
                raise Illegal(f"'{shared.pop()}' is read by a product and by something else")
        return found

    def _ring(self, s: Load, looped: bool) -> Ring:
        layout, chain = self.layout, self.whole.chain
        if s.buffer not in layout.maps:
            raise Illegal(f"'{s.buffer}' cannot be loaded through a tensor map")
        lie = layout.extending(a for *_, i in dimensions(chain, s.read) if (a := i.plain))
        one = layout.maps[s.buffer]
        flipped = lie != layout.space(s.buffer)
        if len(lie) != 2 or {*lie} != {*layout.space(s.buffer)} or one.dtype not in HALF:
            raise Illegal(f"'{s.buffer}' is no matrix in half precision")
        shape = (layout.width(lie[0]), layout.width(lie[1]))
        return Ring(s.buffer, one, shape, flipped, self.rows in lie, looped)

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

    @cached_property
    def columns(self) -> int:
        """Columns of one instruction: all tiles of a group lie alike, so rows of one fit another's
        without a move."""
        widths = [WIDEST]
        for out, roles in self.layout.dots.items():
            widths.append(self._columns(out, roles))
        return min(widths)

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
    def late(self) -> frozenset[str]:
        """Products of the loop that are issued one turn late: their left operand is computed, and
        nothing in the turn needs them. Where that is all but the first product, nothing else.

        Raises Illegal where a thread has too few registers for the products alone."""
        dots = [s for s in self.body if isinstance(s, Compute) and s.buffer in self.layout.dots]
        if (held := self._registers(dots, ())) > REGISTERS[self.count]:
            raise Illegal(f"a thread of {self.count} warp groups has no {held} registers")
        found = frozenset(s.buffer for s in dots if self._waits(s))
        if len(dots) != len(found) + 1 or dots[0].buffer in found:
            return frozenset()
        return found if self._registers(dots, dots[1:]) <= REGISTERS[self.count] else frozenset()

    def _registers(self, dots: Sequence[Compute], late: Sequence[Compute]) -> int:
        """Of a thread that holds all these products, and what enters the late ones, at once."""
        lefts = [self.layout.dots[s.buffer].left.tensor for s in late]
        tiles = [(s.buffer, 4) for s in dots] + [(n, 2) for n in lefts]
        held = sum(n * math.prod(map(self.layout.width, self.layout.space(b))) for b, n in tiles)
        return held // (4 * THREADS) + BESIDE

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Sums over the loop's axis of which each thread keeps a part until the loop has ended, for
        nothing in a turn needs them; their buffers."""
        found = []
        for s in self.body:
            if not isinstance(s, Compute) or s.buffer in self.layout.dots:
                continue
            over = self.layout.extending(s.operator.over)
            alone = self.layout.space(s.buffer) == (self.rows,) and over == (self.loop.axis,)
            if s.operator.reduce == "sum" and alone and self._steady(s):
                found.append(s.buffer)
        return tuple(found)

    def readers(self, name: str) -> list[str]:
        """The products of the loop that read a buffer, the late ones last."""
        found = [
            s.buffer for s in self.body
            if isinstance(s, Compute) and (roles := self.layout.dots.get(s.buffer))
            and name in (roles.left.tensor, roles.right.tensor)
        ]  # fmt: skip
        return sorted(found, key=self.late.__contains__)

    def _waits(self, s: Compute) -> bool:
        """Its left operand is computed, and nothing in a turn needs its sum."""
        computed = self.layout.dots[s.buffer].left.tensor not in self.rings
        return computed and self._steady(s) and self.loop.axis in s.operator.over

    def _steady(self, s: Compute) -> bool:
        """Nothing else in a turn needs a sum, or does more than multiply it."""
        return all(_scaled(t, s.buffer) for t in self.body if t is not s)


def _scaled(s: Statement, buffer: str) -> bool:
    """A statement does nothing with a buffer, or only multiplies it."""
    if not isinstance(s, Repair) or s.buffer != buffer:
        return buffer not in touched(s)
    return factor(s) is not None


def factor(s: Repair) -> Expr | None:
    """By what a repair multiplies its buffer, if that is all that it does."""
    if not isinstance(s.h, Call) or s.h.op != "mul":
        return None
    own = [isinstance(x, Read) and x.tensor == s.buffer for x in s.h.args]
    other = s.h.args[own.index(True) - 1] if own.count(True) == 1 else None
    inside = other is not None and s.buffer in {r.tensor for r in reads(other)}
    return None if inside else other
