"""The terms of the fitted model of GPU kernels with products, counted from a plan's statements.

A term counts events of one kind: instructions of the tensor cores, bytes, waits for memory. Waits
follow each other within a block, so the blocks of a multiprocessor overlap them; other events keep
a unit of the multiprocessor busy, so its blocks queue for it. All are arrays over candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from mcfuser.chain import BYTES, Chain
from mcfuser.chain import nbytes as tensor_bytes
from mcfuser.device import Device
from mcfuser.expr import Call, reads, walk
from mcfuser.lowering.loops import inner, innermost, peak, serial
from mcfuser.lowering.triton.dot import Dot
from mcfuser.lowering.triton.instructions import LEAST
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.locality import contiguous_bytes, distinct_tiles
from mcfuser.model.occupancy import QUARTERS, blocks_held
from mcfuser.space.count import calls
from mcfuser.space.plan import Floats, blocks, elements, repeats
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Store,
    StorePartial,
    statements,
)

SLOW: Mapping[str, float] = {
    **dict.fromkeys(("exp", "exp2", "log", "tanh", "erf", "sqrt", "pow"), 4.0), "div": 8.0
}  # fmt: skip
"""Functions that take as long as several additions."""
LINE = 128
"""Bytes that the cache hands over at once."""
VECTOR = 16
"""Bytes that a thread loads at most at once."""
NARROW = 32.0
"""Columns below which a group instruction takes no less time."""
SIDE_BY_SIDE = 16
"""The most parts that are loaded at once where they are combined; more are walked in a loop."""
ONE_BY_ONE = 2.0
"""How many times as long as other operations a thread's multiplication takes, whose operands it
loads: 44 of an H200's 67 Tflop/s are reached by large products, 25 by small ones."""
ACROSS = 5.0
"""The same where the right operand lies along the depth: threads that multiply by neighbouring
columns load from one bank of shared memory."""
TURNED = 6.0
"""How many times as long as others a tile takes that is turned while it is written to shared
memory."""
LIMIT = 235.0
"""Estimated registers above which some are kept in memory."""

NEIGHBOURS = 16.0
"""Blocks that follow each other, of which kernels are faster the more of what they load is the
same: of tiles of 64 rows and 128 columns, a product of 512 x 4,096 takes 27.5 us where these load
the same columns, and 39 where they load the same rows (H200). From 8 to 66, all fit alike."""

ONCE = ("combined", "parts", "second", "ended")
"""Terms that count once for all blocks: they come after the last of them."""
WAITS = (
    "maps", "turn", "arrive", "fill", "load", "issue", "copy", "fetch", "mma", "chain", "group",
    "teams", "across", "reduce", "mask", "spill", "gather", "regather", "far_load", "far_fill",
)  # fmt: skip
BUSY = (
    "lines", "box", "narrow", "near", "exposed", "stored", "cast", "group_all", "operands",
    "simple_all", "spread",
)  # fmt: skip
"""Terms that keep a unit of the multiprocessor busy."""
SHARED = ("warps", "distinct")
"""Terms that all multiprocessors share evenly: warps that start, bytes that no other block that
runs at the same time reads."""


@dataclass
class Terms:
    """Events a block by term; blocks in all, and blocks that share a multiprocessor; `peak` is the
    longest block over the average one; `dram_seconds` is what the device's memory takes at least,
    in seconds, for the constants, and for all tensors where they outgrow its cache; `far` tells
    whether that is most of what the kernel moves."""

    size: int
    events: dict[str, Floats] = field(default_factory=dict)
    blocks: Floats = field(default_factory=lambda: np.zeros(0))
    resident: Floats = field(default_factory=lambda: np.zeros(0))
    peak: Floats = field(default_factory=lambda: np.zeros(0))
    dram_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    far: bool = False

    def add(self, name: str, count: Floats) -> None:
        assert name in (*ONCE, *SHARED, *WAITS, *BUSY), name
        self.events[name] = self.events.get(name, np.zeros(self.size)) + count

    def of(self, name: str) -> Floats:
        return self.events.get(name, np.zeros(self.size))

    def queue(self, places: Floats | int) -> Floats:
        """Blocks of average length that follow each other in a place, where so many run at a time:
        those of unequal length start longest first, so that they end together if they can."""
        share = self.blocks / places
        length: Floats = np.where(self.peak > 1, np.maximum(share, self.peak), np.ceil(share))
        return length

    def together(self, units: int) -> Floats:
        """Blocks that run at the same time on so many multiprocessors."""
        most: Floats = np.minimum(self.blocks, units * self.resident)
        return most


def begun(made: TritonCandidates, device: Device) -> Terms:
    """The blocks of a plan's candidates on a device, and what memory takes at least; no events."""
    counts = Terms(len(made.tiles))
    counts.blocks = blocks(made.plan, made.tiles).astype(np.float64)
    counts.resident = resident(made, device)
    counts.peak = peak(made.facts.body, made.sizes)
    dram_bytes, counts.far = _dram_bytes(made, device)
    counts.dram_seconds = np.full(counts.size, dram_bytes / device.bandwidth)
    return counts


def terms(made: TritonCandidates, device: Device) -> Terms:
    """All terms of a plan's candidates on a device."""
    counts = begun(made, device)
    together = counts.together(device.units)
    iterations = np.ones(counts.size)
    for s, outer in made.facts.points:
        times = repeats(made.sizes, inner(outer))
        iterations = np.maximum(iterations, times)
        if isinstance(s, Compute) and s.operator.out in made.dots:
            _product(counts, made, s, made.dots[s.operator.out], times)
        elif isinstance(s, Compute):
            _map(counts, made, s, times)
        elif isinstance(s, Repair):
            counts.add("simple_all", times * _elements(made, s.buffer, outer, made.width))
        elif isinstance(s, Load):
            apart = repeats(made.sizes, _without_walks(made, outer))  # a walk's tiles overlap
            _load(counts, made, s, outer, times, apart)
            others = distinct_tiles(made, s, outer, together)
            counts.add("distinct", apart * made.nbytes(s.buffer) * others / together)
            near = distinct_tiles(made, s, outer, np.full(counts.size, NEIGHBOURS))
            counts.add("near", apart * made.nbytes(s.buffer) * near / NEIGHBOURS)
        elif isinstance(s, StorePartial | Combine):
            _parts(counts, made, s, outer, times)
        elif isinstance(s, Store):
            counts.add("stored", times * made.nbytes(s.buffer))
        elif not isinstance(s, Init | SaveOld):  # these set registers alone
            assert_never(s)
    for loop, outer in serial(made.facts.body):
        _loop(counts, made, loop, outer)
    counts.add("spill", np.maximum(0.0, made.registers - LIMIT) * iterations)
    if made.tma is not None:
        counts.add("maps", made.tma.astype(np.float64))
    counts.add("warps", made.warps.astype(np.float64))
    return counts


def resident(made: TritonCandidates, device: Device) -> Floats:
    """Blocks that share a multiprocessor, by the estimate of their registers; at least one."""
    by = blocks_held(made.registers, made.shared, made.warps.astype(np.float64), device)
    fewest: Floats = np.maximum(1.0, np.minimum.reduce(list(by.values())))
    return fewest


def _dram_bytes(made: TritonCandidates, device: Device) -> tuple[float, bool]:
    """What comes from the device's memory at least, in bytes, and whether it is most of what the
    kernel moves: all tensors where they outgrow the cache, else the constants, for those were not
    read since the model's last run."""
    chain = made.plan.program.chain
    moved = {t: float(tensor_bytes(chain, t)) for t in (*chain.inputs, *chain.outputs)}
    total, far = sum(moved.values()), sum(n for t, n in moved.items() if chain.tensor(t).constant)
    return (total, True) if total > device.cache else (far, far > total / 2)


def _elements(
    made: TritonCandidates, name: str, outer: tuple[Loop, ...], along: Callable[[str], Floats]
) -> Floats:
    """Elements of a computed tile, with `along` lanes along each axis."""
    buffer = made.buffer(name)
    total = elements(made.sizes, buffer, [x.axis for x in outer])
    for axis in (d.index.plain for d in buffer.dims):
        total = total * (along(axis) / made.sizes.of(axis) if axis is not None else 1.0)
    return total


def _loop(counts: Terms, made: TritonCandidates, loop: Loop, outer: tuple[Loop, ...]) -> None:
    """A pipelined loop waits for a tile each iteration, but as many of them are in flight as there
    are stages to spare; with one to spare, the arrival of what threads copy is waited for as
    well."""
    entries = repeats(made.sizes, inner(outer))
    iterations = entries * made.sizes.iterations(loop)
    some = alone = np.zeros(counts.size, bool)
    for s, o in statements((loop,)):
        if not isinstance(s, Load) or innermost(o) is not loop:
            continue
        asynchronous = made.asynchronous(s, o)
        some, alone = some | asynchronous, alone | ~asynchronous
        copies = repeats(made.sizes, tuple(x for x in o if x.kind == "unrolled"))
        nbytes = copies * made.nbytes(s.buffer)
        counts.add(
            "arrive", (asynchronous & ~made.mapped(s) & (made.stages == 2)) * iterations * nbytes
        )
        counts.add("exposed", asynchronous * entries * nbytes)
    counts.add("turn", some * iterations / np.maximum(made.stages - 1.0, 1.0))
    counts.add("fill", some * entries * made.stages)
    if counts.far:
        counts.add("far_fill", some * entries)
        counts.add("far_load", alone * iterations)


def _load(
    counts: Terms,
    made: TritonCandidates,
    s: Load,
    outer: tuple[Loop, ...],
    times: Floats,
    apart: Floats,
) -> None:
    """A load through a tensor map is one request for a box, whose rows of less than a line of the
    cache take longer than their bytes. Without a map, threads request every vector, and whole lines
    are moved. What a walk along a window loads is in flight at once, so that `apart` loads are
    waited for, element by element, for its addresses are not those of vectors."""
    nbytes = made.nbytes(s.buffer)
    run = np.minimum(contiguous_bytes(made, s.read.tensor, s.read.indices), nbytes)
    alone, mapped = ~made.asynchronous(s, outer), made.mapped(s)
    lines = np.maximum(1.0, LINE / run)
    counts.add("box", mapped * times * nbytes)
    counts.add("narrow", mapped * times * nbytes * (lines - 1.0))
    counts.add("lines", ~mapped * times * nbytes * lines)
    counts.add("exposed", alone * times * nbytes)
    counts.add("load", alone * apart)
    element = float(BYTES[made.buffer(s.buffer).dtype])
    aligned = np.minimum(VECTOR, made.facts.vectors[s.buffer])
    width = np.where(apart < times, element, np.minimum(aligned, run))
    vectors = np.maximum(1.0, nbytes / (32 * made.warps * width))
    counts.add("issue", (alone & ~mapped) * times * vectors)
    counts.add("copy", ~(alone | mapped) * times * vectors)
    counts.add("fetch", mapped * times)
    if s.buffer not in made.facts.operands:
        counts.add("cast", times * nbytes)


def _without_walks(made: TritonCandidates, outer: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops around a statement that a block runs, but for those along windows."""
    along = made.plan.program.windows
    return tuple(x for x in inner(outer) if x.axis not in along)


def _product(counts: Terms, made: TritonCandidates, s: Compute, dot: Dot, times: Floats) -> None:
    """A product runs on instructions of a warp group, or on those of single warps, which load their
    operands into registers first; or threads multiply one by one what the tensor cores would round.
    """
    out = s.operator.out
    wide, threads = out in made.facts.wide, made.threads(out)
    if wide:
        slow = ACROSS if out in made.facts.deep else ONE_BY_ONE
        counts.add("simple_all", threads * times * slow * dot.rows * dot.columns * dot.depth)
        _parts_of_operands(counts, made, out, dot, times)
    if threads.all():
        return
    times = times * ~threads
    chain, warps = made.plan.program.chain, made.warps
    left = made.facts.products[out].left.tensor
    loaded = made.loaded(left)
    instructions = made.of_parts(out, "instructions")
    steps = dot.depth / LEAST
    small, large = times * ~dot.grouped, times * dot.grouped
    each = dot.row_tiles * dot.column_tiles * steps * instructions
    counts.add("mma", small * each * np.ceil(warps / QUARTERS))
    counts.add("chain", small * steps * made.of_parts(out, "products"))
    fragments = steps * (dot.row_tiles * loaded + dot.column_tiles / 2)
    if wide:  # twice the bytes, and one number at a time where they lie across the depth
        fragments = fragments * (2.0 if out in made.facts.deep else 4.0)
    counts.add("operands", small * fragments * warps)
    counts.add("group", large * dot.row_tiles * steps * instructions)
    columns = np.maximum(dot.columns / dot.along, NARROW)
    counts.add("group_all", large * dot.row_tiles * steps * columns * warps * instructions)
    counts.add("teams", large * (warps > QUARTERS))
    if not loaded and not _follows(chain, left, made):
        each = np.where(made.stages > 1, warps, 1.0)  # from a pipeline's tile; else from each other
        counts.add("spread", times * dot.rows / dot.across * dot.depth * each)


def _parts_of_operands(
    counts: Terms, made: TritonCandidates, out: str, dot: Dot, times: Floats
) -> None:
    """The parts of a product's float32 operands. Those of a warp group's right operand are put into
    shared memory; they lie there along the depth, across which it comes from elsewhere if it is
    stored so."""
    counts.add("simple_all", times * made.of_parts(out, "operations") * made.split(out))
    turned = 1.0 if out in made.facts.deep else TURNED
    written = made.of_parts(out, "nbytes") / 4 * turned * dot.columns * dot.depth
    counts.add("spread", times * dot.grouped * written)


def _follows(chain: Chain, tensor: str, made: TritonCandidates) -> bool:
    """Whether a tensor is computed from a product, so that its tile is distributed among warps as a
    product takes it. Otherwise every warp computes all that it reads."""
    if tensor in made.dots:
        return True
    bodies = [o.body for o in chain.operators if o.out == tensor]
    return any(_follows(chain, r.tensor, made) for body in bodies for r in reads(body))


def operations(s: Compute) -> float:
    """Additions that computing an element of a map, or of what is reduced, takes as long as."""
    slow = sum(SLOW.get(e.op, 1.0) - 1.0 for e in walk(s.body) if isinstance(e, Call))
    return calls(s.body) + (s.operator.reduce != "none") + slow


def _map(counts: Terms, made: TritonCandidates, s: Compute, times: Floats) -> None:
    """A map of a product's result is computed where the product's warps left it; any other is
    computed by every warp that works on the same rows."""
    size = made.lanes(s.operator.related)
    along = np.maximum.reduce([np.ones(counts.size), *(d.along for d in made.dots.values())])
    chain = made.plan.program.chain
    follows = any(_follows(chain, r.tensor, made) for r in reads(s.body))
    each = np.maximum(1.0, size / (32 * made.warps) * (1.0 if follows else along))
    counts.add("simple_all", times * operations(s) * size)
    if s.operator.domain is not None:
        counts.add("mask", times * each)
    if s.operator.reduce != "none":
        counts.add("reduce", times * each)
        counts.add("across", follows * times * (along > 1))


def _parts(
    counts: Terms,
    made: TritonCandidates,
    s: StorePartial | Combine,
    outer: tuple[Loop, ...],
    times: Floats,
) -> None:
    """Combining loads the partial results of all parts."""
    if isinstance(s, StorePartial):
        return
    parts = float(made.plan.parts)
    nbytes = times * parts * 4 * _elements(made, s.buffer, outer, made.asked)
    wide = np.maximum(1.0, nbytes / (32 * made.warps * VECTOR))
    counts.add("gather", wide)
    counts.add("regather", np.where(made.last, 0.0, wide))
    counts.add("combined", nbytes)
    counts.add("parts", times * parts)
    if parts > SIDE_BY_SIDE:
        counts.add("load", times * parts)
    if not (counts.of("second").any() or counts.of("ended").any()):
        counts.add("second", (~made.last).astype(np.float64))
        counts.add("ended", made.last.astype(np.float64))
