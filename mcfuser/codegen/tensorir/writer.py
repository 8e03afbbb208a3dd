"""The text under construction: lines, loops, and the addresses of elements of tiles and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers

from mcfuser.chain import WHOLE, Bounds, Digit
from mcfuser.codegen.tensorir.integer import (
    covered,
    divided,
    flat,
    minus,
    plus,
    rest,
    smaller,
    times,
    vectors,
)
from mcfuser.codegen.tensorir.operands import Products
from mcfuser.codegen.tensorir.scalar import Scalar, Typed, loaded
from mcfuser.expr import Affine, Call, Expr, Read, axes, children, reads
from mcfuser.lowering.tensorir.box import PaddedBox
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Dim, Illegal, plain_index

At = Mapping[str, str]
"""The text of each axis' position within the tile at hand."""

PARTS = "/"
"""The suffix of a tile's name that stands for the partial result of the current part."""
SLOTS = 8
"""Values that a pass may compute once before its innermost loop."""
_COSTLY = frozenset(("exp", "exp2", "log", "tanh", "erf", "sqrt", "div", "pow"))


@dataclass
class Writer:
    """The text of one function, and the state at the line that is written next.

    `direct` maps a tile to the output that it is written straight to; `boxes` are those of inputs
    with padding, by the tile; `endings` are the maps that micro-kernels apply to their products, by
    the tiles of these; `loops` are the axes of the surrounding loops; `parted` is the split axis
    inside a part; `zeroed` holds the sums that their micro-kernel initialises itself.
    """

    schedule: Schedule
    lowering: TensorirKnobs
    products: Products
    direct: Mapping[str, str]
    boxes: Mapping[str, PaddedBox] = field(default_factory=dict)
    endings: Mapping[str, Compute] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    loops: list[str] = field(default_factory=list)
    parted: str | None = None
    zeroed: set[str] = field(default_factory=set)
    fresh: Iterator[int] = field(default_factory=numbers)

    # --- lines and loops

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.put(head)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def nest(self, loops: Sequence[tuple[str, str]], unrolled: int = 1) -> Iterator[list[str]]:
        """Serial loops, their variables; a loop of one iteration is left out and stands at 0. Those
        of so many iterations at most are written out."""
        names, before = [], self.depth
        for name, trips in loops:
            if trips != "1":
                few = trips.isdigit() and int(trips) <= unrolled
                self.put(f"for {name} in {'T.unroll' if few else 'range'}({trips}):")
                self.depth += 1
            names.append(name if trips != "1" else "0")
        yield names
        self.depth = before

    @contextmanager
    def over(self, names: Sequence[str], unrolled: int = 1) -> Iterator[dict[str, str]]:
        """Serial loops over the positions of these axes in the tile at hand; those of so many
        positions at most are written out."""
        loops = [(f"{a}_i", self.count(a)) for a in names]
        with self.nest(loops, unrolled) as variables:
            yield dict(zip(names, variables, strict=True))

    @contextmanager
    def micro(self, rows: int) -> Iterator[None]:
        """Loops over the rows `i` and the lanes `j` of a micro-tile's vectors."""
        with self.block(f"for i in T.unroll({rows}):"), self.vector("j", self.lowering.lanes):
            yield

    @contextmanager
    def vector(self, name: str, width: int, stepped: bool = False) -> Iterator[None]:
        """A loop over the lanes of a vector. Where it is `stepped`, elements that are read are not
        neighbours: LLVM makes shuffles of single loads, TVM would not."""
        with self.block(f"for {name} in T.{'unroll' if stepped else 'vectorized'}({width}):"):
            yield

    def lanes(
        self, a: str, write: Callable[[At, str], None], at_once: int = 1, again: bool = False
    ) -> None:
        """Calls `write` with the axis' position and the lane, for the positions of the tile at hand
        (`vectors`)."""

        def at(position: str, lane: str) -> None:
            write({a: position}, lane)

        self.vectors(a, self.count(a), at, at_once, again)

    def vectors(
        self, name: str, count: str, write: Callable[[str, str], None], at_once: int = 1,
        again: bool = False,
    ) -> None:  # fmt: skip
        """Calls `write` with a position below the count and the lane: under a vector loop, of
        several vectors `at_once`, and once more for the positions that fill no vector: under
        narrower ones and a scalar one, or under one that writes some positions `again`."""
        for first, trips, width in vectors(count, at_once * self.lowering.lanes, again):
            if trips == "1" and width == 1:
                write(first, "0")
            elif width == 1:
                with self.block(f"for {name}_r in range({trips}):"):
                    write(plus(first, f"{name}_r"), f"{name}_r")
            elif first == "0":
                with (
                    self.block(f"for {name}_v in range({trips}):"),
                    self.vector(f"{name}_l", width),
                ):
                    write(f"{name}_v * {width} + {name}_l", f"{name}_l")
            else:
                with self.vector(f"{name}_l", width):
                    write(plus(first, f"{name}_l"), f"{name}_l")

    # --- positions

    def size(self, a: str) -> str:
        """The extent of an axis."""
        run_time = isinstance(self.schedule.chain.extent(a), Bounds)
        return f"{a}_size" if run_time else str(self.schedule.chain.size(a))

    def trips(self, a: str) -> str:
        return covered(self.size(a), self.schedule.tile(a))

    def start(self, a: str) -> str:
        """Where the tile at hand begins along an axis."""
        return times(f"{a}_t", self.schedule.tile(a)) if a in self.loops else "0"

    def count(self, a: str) -> str:
        """Positions of the current tile that are inside the extent."""
        tile, size = self.schedule.tile(a), self.size(a)
        if a not in self.loops:
            return size
        return str(tile) if rest(size, tile) == "0" else smaller(
            str(tile), minus(size, self.start(a))
        )  # fmt: skip

    def strides(self, name: str, tile: str = "") -> tuple[str | tuple[Digit, ...], ...]:
        """A tensor's strides, in elements: those in the box of a `tile` of it where there is one;
        dense and row-major where it has none of its own."""
        tensor = self.schedule.chain.tensor(name)
        own = self.boxes[tile].strides if tile in self.boxes else tensor.strides
        if own is not None:
            return tuple(str(s) if isinstance(s, int) else s for s in own)
        strides = ["1"]
        for d in reversed(tensor.shape[1:]):
            strides.insert(0, times(str(d) if isinstance(d, int) else self.size(d), strides[0]))
        return tuple(strides[: len(tensor.shape)])

    def global_position(self, index: Affine, at: At) -> str:
        total = str(index.offset)
        for a, c in index.terms:
            total = plus(total, times(plus(self.start(a), at.get(a, "0")), c))
        return total

    def address(self, name: str, indices: Sequence[Affine], at: At, tile: str = "") -> str:
        """An element of a parameter, in its memory; of a loaded `tile`, where that is."""
        return f"{self.memory(name, tile)}[{self.number(name, indices, at, tile)}]"

    def memory(self, name: str, tile: str = "") -> str:
        """Where the elements of a parameter are: in the box of a `tile` of it if there is one, else
        in its flat array."""
        return f"{tile}_box" if tile in self.boxes else f"{name}_flat"

    def number(self, name: str, indices: Sequence[Affine], at: At, tile: str = "") -> str:
        """The number of an element in this memory."""
        boxed = tile in self.boxes
        total = "0" if boxed else str(self.schedule.chain.tensor(name).offset)
        for index, stride in zip(indices, self.strides(name, tile), strict=True):
            total = plus(total, _along(self.global_position(index, at), stride))
        return f"{total} - {tile}_start" if boxed else total

    def element(self, r: Read, at: At) -> str:
        """An element of a loaded or computed tile, or of a part's partial result."""
        name = r.tensor.removesuffix(PARTS)
        buffer = self.schedule.buffer(name)
        if buffer.tensor in self.schedule.chain.inputs:
            return self.address(buffer.tensor, r.indices, at, name)
        if name in self.direct:
            return self.address(self.direct[name], r.indices, at)
        where = [self._local(d, i, at) for d, i in zip(buffer.dims, r.indices, strict=True)]
        if name == r.tensor:
            return f"{name}_tile[{self.place(name, where)}]"
        return f"{name}_parts[t, part, {', '.join(where) or '0'}]"

    def place(self, name: str, where: Sequence[str]) -> str:
        """The index of an element of a computed tile in scratch. That of the matrix unit's tile is
        one number, so that its rows lie where the unit is told."""
        if not self.products.addressed(name):
            return ", ".join(where) or "0"
        return flat([self.extent(d) for d in self.schedule.buffer(name).dims], where)

    def _local(self, dim: Dim, index: Affine, at: At) -> str:
        a = index.plain
        if a is None or a != dim.index.plain:
            raise Illegal("a computed tile is read at an index that is not its axis")
        here = at.get(a, "0")
        return plus(self.start(a), here) if dim.whole and a in self.loops else here

    def typed(self, r: Read, at: At) -> Typed:
        """An element in the dtype that it is computed in."""
        return loaded(self.element(r, at), self.stored(r.tensor))

    def value(self, r: Read, at: At) -> str:
        """An element as float32."""
        return self.typed(r, at).to("float32").text

    def stored(self, name: str) -> str:
        """The dtype of the memory that a tile's elements are read from."""
        name = name.removesuffix(PARTS)
        tensor = self.schedule.buffer(name).tensor
        if tensor in self.schedule.chain.inputs or name in self.direct:
            return self.schedule.chain.tensor(tensor).dtype
        return self.held(name)

    def held(self, name: str) -> str:
        """The dtype of a computed tile in scratch: conditions are 0 or 1 there."""
        dtype = self.schedule.buffer(name.removesuffix(PARTS)).dtype
        return dtype if dtype in WHOLE else "float32"

    def extent(self, dim: Dim) -> int:
        """Scratch positions of a computed tile's dimension: whole micro-tiles."""
        a = plain_index(dim.index)
        unit, tile = self.products.unit.get(a, 1), self.schedule.tile(a)
        trips = self.schedule.trips(a) if dim.whole else 1
        return (trips - 1) * tile + -(-tile // unit) * unit

    # --- expressions

    def scalar(self, at: At, known: Mapping[Expr, str]) -> Scalar:
        def position(a: str) -> Typed:
            text = plus(self.start(a), at.get(a, "0"))
            return Typed(f"T.int32({text})" if text.isdigit() else f"({text})", "int32")

        return Scalar(self.put, lambda r: self.typed(r, at), position, known, self.fresh)

    def invariant(self, body: Expr, last: str, at: At) -> dict[Expr, str]:
        """Costly parts that do not vary along the last axis, computed once before its loop."""
        known: dict[Expr, str] = {}

        def find(e: Expr) -> None:
            if isinstance(e, Call) and last not in axes(e) and reads(e) and e.op in _COSTLY:
                if e not in known and len(known) < SLOTS:
                    slot = f"once[{len(known)}]"
                    self.put(f"{slot} = {self.scalar(at, {}).text(e)}")
                    known[e] = slot
                return
            for child in children(e):
                find(child)

        find(body)
        return known


def _along(position: str, stride: str | tuple[Digit, ...]) -> str:
    """What a position adds to an address: of several digits, each times its own stride."""
    if isinstance(stride, str):
        return times(position, stride)
    total, left = "0", position
    for d in reversed(stride[1:]):
        total = plus(times(rest(left, d.extent), d.stride), total)
        left = divided(left, d.extent)
    return plus(times(left, stride[0].stride), total)
