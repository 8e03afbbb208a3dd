"""What Triton makes of a plan: warps on a product, shared memory a block, registers a thread.

Equation (1) sums tiles, wherever they lie. In what Triton makes, accumulators live in registers;
operands of products pass through shared memory, in several copies where a loop is pipelined, and
give their place to others after their last use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Product, product
from mcfuser.device import Device
from mcfuser.expr import reads
from mcfuser.space.plan import Floats, Ints, Plan, Sizes, elements, sizes_of
from mcfuser.space.statement import Combine, Compute, Load, Loop, Statement, statements

LEAST = 16
"""The fewest rows, columns or depth of a product, as the tensor cores take them."""
OUTER = ("grid", "split")
"""Kinds of loops whose turns go to blocks of their own."""
GROUP = 64
"""Rows of a product that four warps of Hopper take in one instruction (wgmma)."""
SPLIT = 8
"""Columns that one warp takes at a time."""
HELD = 285.0
"""Estimated registers above which spilling costs more than any candidate is worth."""
HOPPER = "sm_90"
GATHERED = 256.0
"""Elements of all parts together that a thread can hold while it combines them."""
FEW = 4
"""Elements of its largest product that a thread should have: with fewer, warps have no work."""
BASE = 48.0
"""Registers for addresses, positions and loop counters."""


@dataclass(frozen=True)
class Dot:
    """A product as the tensor cores run it; every field is an array over candidates.

    `across` and `along` count warps over rows and columns; `repeated` is how often the same
    element is computed, where there are more warps than work.
    """

    rows: Floats
    columns: Floats
    depth: Floats
    grouped: NDArray[np.bool_]
    across: Floats
    along: Floats

    @property
    def row_tiles(self) -> Floats:
        """Times a warp takes 16 rows."""
        return np.ceil(self.rows / LEAST / self.across)

    @property
    def column_tiles(self) -> Floats:
        """Times a warp takes 8 columns."""
        return np.ceil(self.columns / SPLIT / self.along)

    @property
    def repeated(self) -> Floats:
        result: Floats = (
            self.row_tiles * LEAST * self.across / self.rows
            * (self.column_tiles * SPLIT * self.along / self.columns)
        )  # fmt: skip
        return result


@dataclass(frozen=True, eq=False)
class Lowered:
    """A plan's candidates under Triton: `tiles` [candidates, axes], `warps` and `stages` each;
    `last` where the last block to end combines the parts of a split, and not a second kernel."""

    plan: Plan
    tiles: Ints
    warps: Ints
    stages: Ints
    last: NDArray[np.bool_]
    hopper: bool = True

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.plan, self.tiles)

    @cached_property
    def roles(self) -> Mapping[str, Product]:
        chain = self.plan.program.chain
        return {o.out: r for o in chain.operators if (r := product(o)) is not None}

    @cached_property
    def dots(self) -> Mapping[str, Dot]:
        return {out: self._dot(r) for out, r in self.roles.items()}

    def _dot(self, r: Product) -> Dot:
        rows, columns, depth = (self.lanes(g) for g in (r.rows, r.columns, r.depth))
        grouped = self.hopper & (rows >= GROUP) & (self.warps % 4 == 0)
        if len(self.roles) > 1:  # Triton keeps a warp's rows where one product feeds another
            across = np.where(grouped | (rows >= columns), self.warps, 1)
        else:
            across = np.minimum(self.warps, np.maximum(rows // LEAST, 1))
        along = self.warps / across
        return Dot(rows, columns, depth, grouped, across * 1.0, along)

    def lanes(self, axes: tuple[str, ...]) -> Floats:
        """Elements along some axes of a product, padded as Triton pads them."""
        total = np.ones(len(self.tiles))
        for a in axes:
            total = total * self.width(a)
        return np.maximum(total, LEAST)

    def width(self, axis: str) -> Floats:
        """The next power of two of a tile."""
        found: Floats = np.exp2(np.ceil(np.log2(self.sizes.of(axis))))
        return found

    def copies(self, loop: Loop | None) -> Floats:
        """Buffers for each tile that a loop loads: those in flight, and on Hopper the one that an
        unfinished product still reads."""
        if loop is None or not pipelined(loop):
            return np.ones(len(self.tiles))
        grouped = np.any([d.grouped for d in self.dots.values()], axis=0) if self.dots else False
        found: Floats = np.maximum(1.0, np.where(grouped, self.stages, self.stages - 1.0))
        return found

    # --- shared memory

    @cached_property
    def shared(self) -> Floats:
        """Bytes of shared memory that a block asks for: the most that is alive at once."""
        most = np.zeros(len(self.tiles))
        points = list(enumerate(statements(self.plan.placed[1])))
        spans = [self._span(i, s, outer, points) for i, (s, outer) in points
                 if isinstance(s, Load) and s.buffer in self._operands]  # fmt: skip
        for i, (s, _) in points:
            alive = sum((size for first, last, size in spans if first <= i <= last), 0.0)
            if isinstance(s, Compute) and s.operator.out in self.dots:
                alive = alive + self._turned(s)
            most = np.maximum(most, alive)
        return most

    @cached_property
    def _operands(self) -> frozenset[str]:
        """Buffers that enter a product as they were loaded."""
        return frozenset(
            r.tensor
            for s, _ in statements(self.plan.placed[1])
            if isinstance(s, Compute) and s.operator.out in self.roles
            for r in reads(s.body)
        )

    def _span(
        self, at: int, load: Load, outer: tuple[Loop, ...],
        points: list[tuple[int, tuple[Statement, tuple[Loop, ...]]]],
    ) -> tuple[int, int, Floats]:  # fmt: skip
        """First and last statement while a loaded tile is in shared memory, and its bytes."""
        inner = next((x for x in reversed(outer) if x.kind not in OUTER), None)
        uses = [j for j, (s, _) in points if isinstance(s, Compute) and _reads(s, load.buffer)]
        last = max(uses, default=at)
        around = points[last][1][1]
        beyond = next((x for x in around if x not in outer), None)
        if beyond is not None:  # it must survive until the loop that uses it has ended
            last = max(j for j, (_, o) in points if beyond in o)
        first = at
        if inner is not None and pipelined(inner):
            inside = [j for j, (_, o) in points if inner in o]
            first, last = min(first, *inside), max(last, *inside)
        return first, last, self.nbytes(load.buffer) * self.copies(inner)

    def nbytes(self, name: str) -> Floats:
        """Bytes of a loaded tile."""
        chain = self.plan.program.chain
        buffer = next(b for b in self.plan.placed[0] if b.name == name)
        total = np.full(len(self.tiles), float(BYTES[chain.tensor(buffer.tensor).dtype]))
        for dim in buffer.dims:
            name = dim.index.plain or ""
            total = total * (self.width(name) if name else self.sizes.span(dim))
        return total

    def _turned(self, s: Compute) -> Floats:
        """Bytes through which a computed left operand goes from one warp to others."""
        dot, roles = self.dots[s.operator.out], self.roles[s.operator.out]
        if roles.left.tensor in self.plan.program.chain.inputs:
            return np.zeros(len(self.tiles))
        found: Floats = np.where(dot.grouped | (dot.along == 1), 0.0, 2 * dot.rows * dot.depth)
        return found

    # --- registers

    @cached_property
    def registers(self) -> Floats:
        """Registers that a thread would like, an estimate; 255 is all there are.

        Accumulators, a share of the operands' fragments and of what is loaded without a pipeline,
        and two for each address of a pipelined load; the shares are fitted to compiled kernels.
        """
        threads = 32.0 * self.warps
        found = np.full(len(self.tiles), BASE)
        fragments = np.zeros(len(self.tiles))
        for out, dot in self.dots.items():
            found += 0.93 * dot.rows * dot.columns * dot.repeated * self._kept(out) / threads
            each = dot.depth * (dot.columns / dot.along + dot.rows / dot.across) / 64
            fragments = np.maximum(fragments, ~dot.grouped * each)
        for s, outer in statements(self.plan.placed[1]):
            if isinstance(s, Load):
                inner = next((x for x in reversed(outer) if x.kind not in OUTER), None)
                ahead = (self.stages > 1) & (inner is not None and pipelined(inner))
                words = self.nbytes(s.buffer) / 4 / threads
                found += np.where(ahead, 0.14, 0.18) * words
        result: Floats = found + 0.12 * fragments
        return result

    @cached_property
    def gathered(self) -> Floats:
        """Elements a thread holds while it combines the parts of a split, all parts at once."""
        most = np.zeros(len(self.tiles))
        for s, outer in statements(self.plan.placed[1]):
            if isinstance(s, Combine):
                buffer = next(b for b in self.plan.placed[0] if b.name == s.buffer)
                size = elements(self.sizes, buffer, [x.axis for x in outer])
                most = np.maximum(most, self.plan.parts * size / (32.0 * self.warps))
        return most

    def _kept(self, out: str) -> Floats:
        """Tiles that a buffer keeps side by side."""
        total = np.ones(len(self.tiles))
        for dim in next(b for b in self.plan.placed[0] if b.name == out).dims:
            if dim.whole and dim.index.plain is not None:
                total = total * self.sizes.trips(dim.index.plain)
        return total


def pipelined(loop: Loop) -> bool:
    """Triton keeps loads in flight over the turns of an innermost loop that loads."""
    return (
        loop.kind == "serial"
        and not any(isinstance(s, Loop) for s in loop.body)
        and any(isinstance(s, Load) for s in loop.body)
    )


def serial(body: tuple[Statement, ...], outer: tuple[Loop, ...] = ()) -> Iterator[
    tuple[Loop, tuple[Loop, ...]]
]:  # fmt: skip
    """Every loop that a block walks, with those around it."""
    for s in body:
        if isinstance(s, Loop):
            if s.kind == "serial":
                yield s, outer
            yield from serial(s.body, (*outer, s))


def _reads(s: Compute, name: str) -> bool:
    return any(r.tensor == name for r in reads(s.body))


def worth(plan: Plan, tiles: Ints, warps: Ints, stages: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates are worth a look: no certain spilling, shared memory that a block may have,
    no warps without work, no more stages than turns.

    Group instructions need two stages: with one, Triton 3.6 lets a later load overwrite what an
    unfinished product still reads (43 of 277 kernels were wrong or faulted on an H200, against 6 of
    699 with more stages, and none of 2,168 without such instructions).
    """
    made = Lowered(plan, tiles, warps, stages, warps < 0, device.arch == HOPPER)
    turns = np.ones(len(tiles))
    for loop, _ in serial(plan.placed[1]):
        if pipelined(loop):
            turns = np.maximum(turns, made.sizes.turns(loop))
    busy = warps == 1
    for dot in made.dots.values():
        busy |= dot.rows * dot.columns >= FEW * 32 * warps
    if not made.dots:
        return np.asarray(stages <= turns)
    grouped = np.any([d.grouped for d in made.dots.values()], axis=0)
    staged = np.where(grouped, (stages > 1) & (stages <= np.maximum(turns, 2)), stages <= turns)
    fits = (made.registers <= HELD) & (made.shared <= device.fast) & (made.gathered <= GATHERED)
    return np.asarray(fits & staged & busy)
