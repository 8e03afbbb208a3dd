"""The state of a kernel that is being written: the current iteration of every axis, names in
use."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcfuser.chain import LOWEST, Bounds, Tensor
from mcfuser.codegen.triton.dialect import TRITON, Dialect
from mcfuser.codegen.triton.position import Position
from mcfuser.codegen.triton.tile import Scope, TileValue, literal, named, shape_text
from mcfuser.expr import NARROW, Affine, Read, index_text
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.instructions import HALF
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.matrix import MatrixAxes
from mcfuser.lowering.triton.rows import TileRow
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Illegal, Statement

GLUON = {"gl", "gluon", "hopper", "tma", "mbarrier", "fetch", "put", "lanes", "by_lane",
         "group", "iteration", "slot", "phase", "slot_before", "phase_before", "each",
         "TILE", "ROWS", "COLUMNS", "LEFT"}  # fmt: skip
"""Names that the source of kernels with warp groups uses."""
LINE = 100
TAB = "    "


def call(depth: int, head: str, args: Sequence[str], tail: str = "") -> list[str]:
    """`head(args)tail`, over several lines where one is too short."""
    pad = TAB * depth
    if len(line := f"{pad}{head}({', '.join(args)}){tail}") <= LINE:
        return [line]
    if len(line := f"{pad}{TAB}{', '.join(args)}") <= LINE:
        return [f"{pad}{head}(", line, f"{pad}){tail}"]
    return [f"{pad}{head}(", *(f"{pad}{TAB}{a}," for a in args), f"{pad}){tail}"]


def assign(depth: int, name: str, words: str) -> list[str]:
    """`name = words`, in parentheses of its own line where one is too short."""
    pad = TAB * depth
    if len(line := f"{pad}{name} = {words}") <= LINE:
        return [line]
    return [f"{pad}{name} = (", f"{pad}{TAB}{words}", f"{pad})"]


def mentions(lines: Sequence[str], name: str) -> bool:
    return re.search(rf"\b{name}\b", "\n".join(lines)) is not None


@dataclass(frozen=True, slots=True)
class Part:
    """The positions of a split axis that a block covers: `first`, and the `end` of its part, as
    text. Where parts are `even`, none of them reaches past the extent."""

    axis: str
    first: str
    end: str
    even: bool


@dataclass(frozen=True, slots=True)
class MatrixSum:
    """A tile that a loop adds up as a matrix, or as several: the variable of the loop, the axes of
    the matrix in order, several along a dimension, and the extents of its dimensions."""

    matrix: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]


@dataclass
class Frame:
    """The state of the kernel at the line that is written next.

    `at` holds the axes whose current iteration is known: a number where the loop is written out,
    None where it is a variable. `fresh` holds the buffers whose next reduction starts anew.
    `summed` holds the buffers to which a loop around does nothing but add products, each with its
    tiles that are matrices meanwhile.
    `placed` holds the names of pointers to the partial results of parts that are defined already;
    they stay defined, since no loop encloses a Combine. `whole` holds the axes whose tiles lie
    inside their extents in the iterations that are written, though not in all.

    In a kernel with warp groups the frame is that of one of the `groups`. `arrived` holds the
    buffers whose tiles this iteration has waited for, each with whether it is the tile of a
    deferred product; `deferred` the products to issue together with the iteration's first one;
    `unmasked` the statements without masks, by statement, for iterations inside a domain;
    `arrangements` the names of the layouts that tiles have.
    """

    schedule: Schedule
    layout: TileLayout
    split: Part | None = None
    dialect: Dialect = TRITON
    at: dict[str, int | None] = field(default_factory=dict)
    depth: int = 1
    fresh: set[str] = field(default_factory=set)
    summed: dict[str, dict[str, MatrixSum]] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    groups: WarpGroups | None = None
    arrived: set[tuple[str, bool]] = field(default_factory=set)
    deferred: tuple[Compute, ...] = ()
    unmasked: Mapping[Statement, Compute] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    arrangements: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        taken = {"tl", "triton", "cuda", "pid", "part", "peer", "range", "float", "LOWEST", "tf32"}
        taken |= GLUON if self.groups is not None else set()
        for a in self.schedule.chain.axes:
            endings = ("", "_start", "_in", "_size", "_trips", "_first", "_span", "_end", "_inside")
            taken |= {f"{a.name}{ending}" for ending in endings}
        self.names |= {("", t): t for t in taken}  # another frame's names stay, and are shared

    # --- names

    def named(self, kind: str, wish: str) -> str:
        """A name in the source: always the same for the same kind and wish, and unique."""
        if (kind, wish) not in self.names:
            name = f"{wish}_" if keyword.iskeyword(wish) else wish
            while name in self.names.values():
                name += "_"
            self.names[kind, wish] = name
        return self.names[kind, wish]

    def pointer(self, tensor: str) -> str:
        return self.named("pointer", f"{tensor}_ptr")

    def map(self, buffer: str) -> str:
        return self.named("map", f"{buffer}_map")

    def tile(self, name: str) -> str:
        """The variable that holds a buffer's tile, numbered where the buffer keeps several."""
        iterations = [str(self.at[a]) for a in self.layout.kept(name)]
        return self.named(f"tile of {name}", "_".join([name, *iterations]))

    # --- axes

    def start(self, a: str) -> str:
        """The text of the first position of an axis in the current iteration."""
        iteration = self.at[a]
        if iteration is not None:
            return str(iteration * self.schedule.tile(a))
        return a if self.layout.scalar(a) else f"{a}_start"

    def run_time(self, a: str) -> bool:
        """The extent is an argument of the kernel."""
        return isinstance(self.schedule.chain.extent(a), Bounds)

    def size(self, a: str) -> str:
        """The extent of an axis: a number, or the argument that holds it."""
        return f"{a}_size" if self.run_time(a) else str(self.schedule.chain.size(a))

    def trips(self, a: str) -> str:
        """Iterations along an axis: a number, or a variable that is set where the kernel starts."""
        if not self.run_time(a):
            return str(self.schedule.trips(a))
        return f"{a}_trips" if self.schedule.tile(a) > 1 else self.size(a)

    def first(self, a: str) -> Position:
        """The first position of an axis in the current iteration; without a loop, of all."""
        iteration = self.at.get(a, 0)
        if iteration is not None:
            return Position(number=iteration * self.schedule.tile(a))
        return Position(((self.start(a), 1),))

    def last(self, a: str) -> Position:
        """The last position of an axis in the current iteration; without a loop, of all."""
        tile, size = self.schedule.tile(a), self.schedule.chain.size(a)
        iteration = self.at.get(a, self.schedule.trips(a) - 1)
        if iteration is None:
            return self.first(a).plus(Position(number=tile - 1))
        return Position(number=min((iteration + 1) * tile, size) - 1)

    def limit(self, a: str) -> str:
        """The end of the current iteration along an axis: the first position past it."""
        tile, iteration, size = self.schedule.tile(a), self.at[a], self.size(a)
        if self.layout.width(a) == tile and (iteration is None or self.run_time(a)):
            return size
        end = f"{a}_start + {tile}" if iteration is None else str((iteration + 1) * tile)
        if self.run_time(a):
            return f"{self.dialect.word('minimum')}({end}, {size})"
        if iteration is not None:
            return str(min(int(end), int(size)))
        least = f"{self.dialect.word('minimum')}({end}, {size})"
        return least if self.schedule.ragged(a) else end

    def inside(self, a: str) -> TileValue | None:
        """The mask of an axis, None where all its lanes are inside."""
        if self.layout.scalar(a) or a in self.whole:
            return None
        iteration, tile, width = self.at[a], self.schedule.tile(a), self.layout.width(a)
        if iteration is not None and not self.run_time(a):
            needed = iteration * tile + width > int(self.limit(a))
        else:
            needed = width > tile or self.schedule.ragged(a)
        if self.groups is not None and a == self.groups.rows:  # a group may have no rows at all
            needed = needed or self.groups.whole.ragged(a)
        return TileValue(f"{a}_in", (a,), "bool") if needed else None

    def masks(self, axes: Sequence[str]) -> list[TileValue]:
        return [mask for a in axes if (mask := self.inside(a)) is not None]

    def define(self, a: str, lines: list[str]) -> list[str]:
        """The lines, after the definitions that they use of an axis: its positions, and its
        mask."""
        if self.layout.scalar(a):
            return lines
        pad, definitions = TAB * self.depth, []
        if mentions(lines, f"{a}_in"):
            definitions.append(f"{pad}{a}_in = {a} < {self.limit(a)}")
        if mentions([*lines, *definitions], a):
            every = f"0, {self.layout.width(a)}{self.arrangement((a,))}"
            lanes = f"{self.dialect.word('arange')}({every}){self.wide}"
            start = self.start(a)
            definitions.insert(0, f"{pad}{a} = {lanes if start == '0' else f'{start} + {lanes}'}")
        return [*definitions, *lines]

    # --- values

    def position(self, a: str) -> TileValue:
        """The positions of an axis, a number where it takes one an iteration."""
        if a not in self.at:
            raise Illegal(f"a statement uses axis '{a}' outside its loop")
        if not self.layout.scalar(a):
            return TileValue(a, (a,), "int32")
        iteration = self.at[a]
        return literal(iteration) if iteration is not None else TileValue(a, (), "int32")

    def read(self, r: Read) -> TileValue:
        """A tile that was loaded or computed, in a dtype that is computed in."""
        load = self.layout.loads.get(r.tensor)
        dims = self.schedule.buffer(r.tensor).dims
        held = load.read.indices if load is not None else tuple(d.index for d in dims)
        if r.indices != held:
            where = ", ".join(index_text(i) for i in r.indices)
            raise Illegal(f"'{r.tensor}' is read at {where}, but its tile is of other elements")
        return TileValue(self.tile(r.tensor), self.layout.space(r.tensor), self.dtype(r.tensor))

    @property
    def matrices(self) -> Mapping[str, MatrixAxes]:
        """The inputs that are loaded as matrices; groups load theirs through maps."""
        return self.layout.matrices if self.groups is None else {}

    def row(
        self, tensor: Tensor, indices: Sequence[Affine], space: Sequence[str]
    ) -> TileRow | None:
        """The row as which a tile is moved, in Triton, which moves values among threads."""
        return self.layout.row(tensor, indices, space) if self.dialect.moves else None

    def full(self, name: str, number: float) -> str:
        """The text of a buffer's tile in which every element is one number."""
        dtype, zeros = named(self.dtype(name)), self.dialect.word("zeros")
        if self.groups is not None and name in self.lanes:
            axes = (self.groups.rows, self.groups.loop.axis)
            wide = shape_text([self.layout.width(a) for a in axes])
            return f"lanes({zeros}({wide}, {self.dialect.word(dtype)}, TILE))"
        shape = shape_text([self.layout.width(a) for a in self.layout.space(name)])
        layout = self.arrangement(self.layout.space(name))
        if number == 0:
            return f"{zeros}({shape}, {self.dialect.word(dtype)}{layout})"
        words = "LOWEST" if number == LOWEST else repr(number)
        return self.dialect.full(shape, words, dtype, layout)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Sums of which each thread holds a partial sum (WarpGroups.lanes)."""
        return self.groups.lanes if self.groups is not None else ()

    @property
    def wide(self) -> str:
        """The cast of positions that 32 bits cannot count; nothing where they can."""
        return f".to({self.dialect.word('int64')})" if self.layout.wide else ""

    def arrangement(self, space: Sequence[str]) -> str:
        """The argument that names the layout of a warp group's tile; empty in Triton, which chooses
        layouts itself."""
        if self.groups is None:
            return ""
        name = self.groups.arrangement(space)
        self.arrangements.add(name)
        return f", {name}"

    def dtype(self, name: str) -> str:
        """The dtype of the variable that holds a buffer's tile."""
        dtype = self.schedule.buffer(name).dtype
        if name in self.layout.loads and dtype in HALF and name not in self.layout.operands:
            return "float32"
        return "int32" if dtype in NARROW else dtype

    def scope(self, owner: str, order: Sequence[str], lines: list[str]) -> Scope:
        """The scope of the expressions of a buffer; subexpressions that need lines of their own are
        appended to `lines`.

        Their names contain the buffer's, since a variable must keep its type across loops.
        """

        def name(words: str) -> str:
            return self.part(f"{owner}_part_{len(lines) + 1}", words, lines)

        return Scope(self.dialect, self.read, self.position, tuple(order), name)

    def part(self, wish: str, words: str, lines: list[str]) -> str:
        """The name of an intermediate result, after the line that computes it."""
        name = self.named("part", wish)
        lines += assign(self.depth, name, words)
        return name
