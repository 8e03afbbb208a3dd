"""Resources of a plan's candidates under Triton: how warps share a product, bytes of shared memory
of a block, registers of a thread.

Equation (1) of MCFuser adds up all tiles, whatever memory holds them. Under Triton, accumulators
are held in registers. Operands of products pass through shared memory, in several copies where a
loop is pipelined; after their last use their place is given to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Product
from mcfuser.expr import Call, walk
from mcfuser.lowering.loops import innermost, pipelined
from mcfuser.lowering.triton.dot import Dot
from mcfuser.lowering.triton.hopper.tensor_map import mappable
from mcfuser.lowering.triton.instructions import LEAST, ROWS, WARPS
from mcfuser.lowering.triton.planned import Planned, planned
from mcfuser.lowering.triton.precision import PLAIN, PRECISIONS, THREADS, DotPrecision
from mcfuser.lowering.triton.width import power, widths
from mcfuser.space.plan import Floats, Ints, Plan, Sizes, elements, sizes_of
from mcfuser.space.statement import Buffer, Combine, Compute, Load, Loop

COPIED = 4
"""Bytes that a thread copies to shared memory at least."""
BASE = 36.0
"""Registers for addresses, positions and loop counters."""
ALONE = 28.0
"""The same of kernels without products."""
BRANCHES = 2.2
"""Registers for each element of a map with functions that are computed in two ways (erf)."""
TWO_WAYS = frozenset({"erf", "tanh"})
SPLIT = 45.0
"""Registers more of a thread of warp groups that make parts of what they multiply; these, and those
for the parts, are fitted to 80 kernels of one product (Triton 3.9, sm_90, 2026-11-29)."""


@dataclass(frozen=True, eq=False)
class TritonCandidates:
    """A plan's candidates under Triton: `tiles` [candidates, axes], and for each candidate its
    `warps` and `stages`; `last`, whether the last block to end combines the parts of a split, and
    not a second kernel; `tma`, whether operands of products come through tensor maps (None:
    nowhere); and `dot`, how products of float32 operands are computed (None: by threads). `hopper`
    says whether the device has instructions of whole warp groups."""

    plan: Plan
    tiles: Ints
    warps: Ints
    stages: Ints
    last: NDArray[np.bool_]
    hopper: bool = True
    tma: NDArray[np.bool_] | None = None
    dot: NDArray[np.str_] | None = None

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.plan, self.tiles)

    @cached_property
    def facts(self) -> Planned:
        """What holds for all candidates of the plan."""
        return planned(self.plan)

    def loaded(self, name: str) -> bool:
        """Whether a buffer holds a tile of an input, not a computed one."""
        return self.facts.buffers[name].tensor in self.plan.program.chain.inputs

    @cached_property
    def dots(self) -> Mapping[str, Dot]:
        return {out: self._dot(out, r) for out, r in self.facts.products.items()}

    def _dot(self, out: str, r: Product) -> Dot:
        rows, columns, depth = (self.lanes(g) for g in (r.rows, r.columns, r.depth))
        grouped = self.hopper & ~self.threads(out) & (rows >= ROWS) & (self.warps % WARPS == 0)
        least = np.where(grouped, WARPS, 1)
        if (
            len(self.facts.products) > 1
        ):  # Triton keeps a warp's rows where one product feeds another
            across = np.where(grouped | (rows >= columns), self.warps, 1)
        else:
            across = np.minimum(self.warps, np.maximum(rows // LEAST, least))
        along = self.warps / across
        return Dot(rows, columns, depth, grouped, across * 1.0, along)

    def threads(self, out: str) -> NDArray[np.bool_]:
        """Whether threads multiply the elements of a product one by one."""
        return np.asarray(self.of_parts(out, "products") == 0)

    def of_parts(self, out: str, name: str) -> Floats:
        """A field of the DotPrecision of a product."""
        wide = out in self.facts.wide
        if (wide, name) not in self._of_parts:
            precisions, at = self._precisions if wide else ([PLAIN], np.zeros_like(self.warps))
            fields = np.asarray([float(getattr(p, name)) for p in precisions])
            self._of_parts[wide, name] = fields[at]
        return self._of_parts[wide, name]

    @cached_property
    def _of_parts(self) -> dict[tuple[bool, str], Floats]:
        return {}

    def split(self, out: str) -> Floats:
        """Elements of both operands of a product of which a block's warps make parts, each those
        that it multiplies; those of a warp group's right operand, which lies in shared memory, all
        threads make together."""
        dot = self.dots[out]
        right = np.where(dot.grouped, 1.0, dot.across) * dot.columns
        return dot.depth * (dot.rows * dot.along + right)

    @cached_property
    def _precisions(self) -> tuple[list[DotPrecision], Ints]:
        """Those that candidates have, and which of them each has."""
        if self.dot is None:
            return [PRECISIONS[THREADS]], np.zeros(len(self.tiles), np.int64)
        names, at = np.unique(self.dot, return_inverse=True)
        return [PRECISIONS[str(n)] for n in names], at

    def lanes(self, axes: Iterable[str]) -> Floats:
        """Elements along some axes, padded as Triton pads them."""
        return _times(self.width(a) for a in axes)

    def width(self, axis: str) -> Floats:
        """Lanes along an axis."""
        return self._widths[axis]

    @cached_property
    def _widths(self) -> Mapping[str, Floats]:
        return {a: n.astype(np.float64) for a, n in self._lanes.items()}

    @cached_property
    def _lanes(self) -> Mapping[str, Ints]:
        return widths(self.plan.program.chain, self.facts.products.values(), self.sizes.of)

    def copies(self, loop: Loop | None) -> Floats:
        """Buffers for each tile that a loop loads: those in flight, and on Hopper the one that an
        unfinished product still reads, but for one of parts that were made of it."""
        if not pipelined(loop):
            return np.ones(len(self.tiles))
        direct = [d.grouped for out, d in self.dots.items() if out not in self.facts.wide]
        grouped = np.any(direct, axis=0) if direct else False
        buffers: Floats = np.maximum(1.0, np.where(grouped, self.stages, self.stages - 1.0))
        return buffers

    def mapped(self, load: Load) -> NDArray[np.bool_]:
        """The load comes through a tensor map: one thread asks for the whole tile."""
        if self.tma is None or load.buffer not in self.facts.operands:
            return np.zeros(len(self.tiles), bool)
        if load.buffer not in self._mappable:
            chain, lanes = self.plan.program.chain, self._lanes.__getitem__
            self._mappable[load.buffer] = mappable(chain, load.read, self.sizes.of, lanes)
        return np.asarray(self.tma & self._mappable[load.buffer])

    @cached_property
    def _mappable(self) -> dict[str, NDArray[np.bool_]]:
        return {}

    def asynchronous(self, load: Load, outer: Sequence[Loop]) -> NDArray[np.bool_]:
        """Where a load is an asynchronous copy, in flight while earlier iterations compute: it is
        in a pipelined loop, and each thread has four bytes to copy that lie side by side, the least
        that the hardware copies asynchronously. (A vector is distributed as the tile that it is
        combined with.)"""
        if not pipelined(innermost(outer)):
            return np.zeros(len(self.tiles), bool)
        if load.buffer not in self._asynchronous:
            flat = sum(d.index.plain is not None for d in self.buffer(load.buffer).dims) < 2
            enough = self.held(load.buffer) >= COPIED * 32 * self.warps
            wide = (flat | enough) & (self.facts.vectors[load.buffer] >= COPIED)
            self._asynchronous[load.buffer] = (self.stages > 1) & (wide | self.mapped(load))
        return self._asynchronous[load.buffer]

    @cached_property
    def _asynchronous(self) -> dict[str, NDArray[np.bool_]]:
        return {}

    # --- shared memory

    @cached_property
    def shared(self) -> Floats:
        """Bytes of shared memory of a block: the most that is live at once."""
        most = np.zeros(len(self.tiles))
        spans = [self._span(i, s, outer) for i, (s, outer) in enumerate(self.facts.points)
                 if isinstance(s, Load) and s.buffer in self.facts.operands]  # fmt: skip
        for i, (s, _) in enumerate(self.facts.points):
            alive = sum((size for first, last, size in spans if first <= i <= last), 0.0)
            if isinstance(s, Compute) and s.operator.out in self.dots:
                alive = alive + self._exchanged(s)
            most = np.maximum(most, alive)
        return most

    def _span(self, at: int, load: Load, outer: tuple[Loop, ...]) -> tuple[int, int, Floats]:
        """First and last statement while a loaded tile is in shared memory, and its bytes."""
        loop = innermost(outer)
        first, last = at, self.facts.last_reads.get(load.buffer, at)
        beyond = next((x for x in self.facts.points[last][1] if x not in outer), None)
        if beyond is not None:  # it must survive until the loop that uses it has ended
            last = max(j for j, (_, o) in enumerate(self.facts.points) if beyond in o)
        size = self.held(load.buffer) * self.copies(loop)
        if pipelined(loop):
            inside = [j for j, (_, o) in enumerate(self.facts.points) if loop in o]
            first, last = min(first, *inside), max(last, *inside)
            for x in outer:
                size = size * (self.sizes.iterations(x) if x.kind == "unrolled" else 1)
        return first, last, size

    def buffer(self, name: str) -> Buffer:
        return self.facts.buffers[name]

    def nbytes(self, name: str) -> Floats:
        """Bytes that loading or storing a tile costs: along every axis the next power of two of
        elements, since lanes that pad a tile to it cost as much as others. Lanes that pad it to the
        least size of a product are masked, and cost nothing."""
        if name not in self._moved:
            self._moved[name] = self._bytes(name, self.asked)
        return self._moved[name]

    def held(self, name: str) -> Floats:
        """Bytes of a loaded tile in shared memory or registers, padding lanes included."""
        if name not in self._held:
            self._held[name] = self._bytes(name, self.width)
        return self._held[name]

    @cached_property
    def _moved(self) -> dict[str, Floats]:
        return {}

    @cached_property
    def _held(self) -> dict[str, Floats]:
        return {}

    def _bytes(self, name: str, along: Callable[[str], Floats]) -> Floats:
        chain, buffer = self.plan.program.chain, self.buffer(name)
        total = np.full(len(self.tiles), float(BYTES[chain.tensor(buffer.tensor).dtype]))
        for dim in buffer.dims:
            axis = dim.index.plain
            total = total * (along(axis) if axis is not None else self.sizes.span(dim))
        return total

    def asked(self, axis: str) -> Floats:
        """Lanes of a tile along an axis that cost memory traffic: the next power of two."""
        if axis not in self._asked:
            self._asked[axis] = power(self.sizes.of(axis)).astype(np.float64)
        return self._asked[axis]

    @cached_property
    def _asked(self) -> dict[str, Floats]:
        return {}

    def _exchanged(self, s: Compute) -> Floats:
        """Bytes of shared memory through which warps exchange a computed left operand, or the parts
        of a right one of float32."""
        out = s.operator.out
        dot, roles = self.dots[out], self.facts.products[out]
        parts: Floats = dot.grouped * self.of_parts(out, "nbytes") * dot.columns * dot.depth
        if self.loaded(roles.left.tensor):
            return parts
        each = 4 if out in self.facts.wide else 2
        nbytes: Floats = np.where(dot.grouped | (dot.along == 1), 0.0, each * dot.rows * dot.depth)
        return nbytes + parts

    # --- registers

    @cached_property
    def registers(self) -> Floats:
        """An estimate of the registers that a thread needs to hold everything; hardware has 255.

        They hold accumulators, and a fraction of each of these: the operands' fragments, the
        largest map, masked values, tiles that are loaded without a pipeline. The fractions are
        fitted to 6,000 compiled kernels. Rows that pad a tile to the least size of a product repeat
        others, and hardly take registers of their own. Kernels without products, fitted to 2,100,
        hold what they compute.
        """
        if not self.dots:
            return ALONE + (BRANCHES if self._branches else 1.0) * self.largest
        threads = 32.0 * self.warps
        needed, parts = np.full(len(self.tiles), BASE), np.zeros(len(self.tiles))
        for out, dot in self.dots.items():
            share = np.where(dot.grouped, 0.92, np.where(dot.rows < 2 * LEAST, 1.5, 1.19))
            needed += share * dot.rows * dot.columns * dot.repeated * self._kept(out) / threads
            fragments = 0.07 * dot.columns / dot.along
            if not self.loaded(self.facts.products[out].left.tensor):
                fragments = fragments + 0.6 * (dot.along > 1) * dot.rows / dot.across
            needed += ~dot.grouped * dot.depth / 64 * fragments
            split = (self.of_parts(out, "operations") > 0) & dot.grouped
            parts += self.of_parts(out, "registers") * self.split(out) / threads + SPLIT * split
        for s, outer in self.facts.points:
            if isinstance(s, Load):
                held = ~(self.asynchronous(s, outer) | self.mapped(s))
                needed += 0.13 * held * self.nbytes(s.buffer) / 4 / threads
            elif isinstance(s, Compute) and s.operator.out not in self.dots:
                needed += 0.2 * self._elements(s) if s.operator.domain is not None else 0.0
        addresses = 1.0 if self.tma is None else np.where(self.tma, 0.85, 1.0)
        result: Floats = addresses * (needed + 0.26 * self.largest) + parts
        return result

    @cached_property
    def _branches(self) -> bool:
        """Whether some map has functions that are computed in two ways."""
        bodies = [s.body for s, _ in self.facts.points if isinstance(s, Compute)]
        return any(isinstance(e, Call) and e.op in TWO_WAYS for b in bodies for e in walk(b))

    @cached_property
    def largest(self) -> Floats:
        """Elements a thread has of the largest map, or of what is reduced in the largest step."""
        return self._most(lambda s: s.operator.out not in self.dots)

    @cached_property
    def largest_map(self) -> Floats:
        """Elements a thread has of the largest map."""
        return self._most(lambda s: s.operator.reduce == "none")

    def _most(self, wanted: Callable[[Compute], bool]) -> Floats:
        most = np.zeros(len(self.tiles))
        for s, _ in self.facts.points:
            if isinstance(s, Compute) and wanted(s):
                most = np.maximum(most, self._elements(s))
        return most

    def _elements(self, s: Compute) -> Floats:
        """Elements a thread has of all that a statement computes or reduces at once."""
        size: Floats = _times(self.asked(a) for a in s.operator.related) / (32.0 * self.warps)
        return size

    @cached_property
    def multiplied(self) -> Floats:
        """Multiplications that a thread writes out in an iteration: those of the products that the
        tensor cores do not compute."""
        total = np.zeros(len(self.tiles))
        for out in self.facts.wide:
            d = self.dots[out]
            total += self.threads(out) * d.rows * d.columns * d.depth
        return total / (32.0 * self.warps)

    @cached_property
    def gathered(self) -> Floats:
        """Elements a thread holds while it combines the parts of a split, all parts at once."""
        most = np.zeros(len(self.tiles))
        for s, outer in self.facts.points:
            if isinstance(s, Combine):
                buffer = self.buffer(s.buffer)
                size = elements(self.sizes, buffer, [x.axis for x in outer])
                most = np.maximum(most, self.plan.parts * size / (32.0 * self.warps))
        return most

    def _kept(self, out: str) -> Floats:
        """The number of tiles that a buffer keeps at once."""
        total = np.ones(len(self.tiles))
        for dim in self.buffer(out).dims:
            if dim.whole and dim.index.plain is not None:
                total = total * self.sizes.trips(dim.index.plain)
        return total


def _times(counts: Iterable[Floats]) -> Floats:
    result: Floats = math.prod(counts, start=np.ones(1))
    return result
