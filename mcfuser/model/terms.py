"""What a GPU kernel's time is made of, counted from a plan's statements: the terms of the model.

A term counts events: turns of the tensor cores, bytes, waits for memory. Waits are what one block
spends in a row, so blocks on one multiprocessor overlap them; the others keep a unit of the
multiprocessor busy, so blocks there queue for it. All are arrays over candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcfuser.chain import BYTES
from mcfuser.chain import nbytes as tensor_bytes
from mcfuser.device import Device
from mcfuser.expr import Call, walk
from mcfuser.model.resources import LEAST, OUTER, Dot, Lowered, pipelined
from mcfuser.space.count import calls
from mcfuser.space.plan import Floats, blocks, elements, repeats
from mcfuser.space.statement import (
    Combine,
    Compute,
    Load,
    Loop,
    Repair,
    Share,
    Store,
    statements,
)

SLOW = frozenset(("exp", "exp2", "log", "tanh", "erf", "sqrt", "pow", "div"))
"""Functions of the special function units."""
SECTOR = 32
"""Bytes that memory moves at least."""
VECTOR = 16
"""Bytes that a thread loads at most at once."""
NARROW = 32.0
"""Columns below which a group instruction takes no less time."""
THREADS, BLOCKS = 2048, 32
"""Threads and blocks of a multiprocessor at most."""
FILE = 65536
"""Registers of a multiprocessor."""
RESERVED = 1024
"""Bytes of shared memory that every block takes besides its own."""

WAITS = (
    "load", "fill", "turn", "issue", "issue_ahead", "through", "sector", "store", "mma", "chain",
    "wgmma", "group", "reduce", "rows", "across", "exchange", "special", "simple", "spill",
    "part", "gather", "second", "ended",
)  # fmt: skip
BUSY = {
    "bytes": "memory", "stored": "memory", "mma_all": "tensor", "group_all": "tensor",
    "operands": "shared", "special_all": "scalar", "simple_all": "scalar",
}  # fmt: skip
"""Terms by the unit that they keep busy."""


@dataclass
class Terms:
    """Events a block by term, blocks in all, and blocks that share a multiprocessor; `far` is what
    the device's memory takes at least, in seconds, where the tensors outgrow its cache."""

    size: int
    events: dict[str, Floats] = field(default_factory=dict)
    blocks: Floats = field(default_factory=lambda: np.zeros(0))
    resident: Floats = field(default_factory=lambda: np.zeros(0))
    far: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, name: str, count: Floats) -> None:
        assert name in WAITS or name in BUSY, name
        self.events[name] = self.events.get(name, np.zeros(self.size)) + count

    def of(self, name: str) -> Floats:
        return self.events.get(name, np.zeros(self.size))


def terms(made: Lowered, device: Device) -> Terms:
    """All terms of a plan's candidates."""
    found = Terms(len(made.tiles))
    last: Dot | None = None
    for s, outer in statements(made.plan.placed[1]):
        inner = tuple(x for x in outer if x.kind not in OUTER)
        times = repeats(made.sizes, inner)
        if isinstance(s, Compute) and s.operator.out in made.dots:
            last = made.dots[s.operator.out]
            _product(found, made, s, last, times)
        elif isinstance(s, Compute):
            _map(found, made, s, last, times)
        elif isinstance(s, Repair):
            buffer = next(b for b in made.plan.placed[0] if b.name == s.buffer)
            size = elements(made.sizes, buffer, [x.axis for x in outer])
            found.add("simple", times * size / (32 * made.warps))
            found.add("simple_all", times * size)
        elif isinstance(s, Load):
            _load(found, made, s, inner, times)
        elif isinstance(s, Share | Combine):
            _parts(found, made, s, outer, times)
        elif isinstance(s, Store):
            nbytes = made.nbytes(s.buffer)
            found.add("store", times)
            found.add("stored", times * nbytes)
    turns = _turns(made)
    found.add("spill", np.maximum(0.0, made.registers - LIMIT) * turns)
    found.blocks = blocks(made.plan, made.tiles).astype(np.float64)
    found.resident = resident(made, device)
    found.far = np.full(found.size, _far(made, device))
    return found


LIMIT = 235.0
"""Estimated registers above which some are kept in memory."""


def resident(made: Lowered, device: Device) -> Floats:
    """Blocks that share a multiprocessor, by what each of them takes of it."""
    registers = np.minimum(255.0, np.ceil(made.registers / 8) * 8)
    by = (
        np.floor((device.fast + RESERVED) / (made.shared + RESERVED)),
        np.floor(FILE / (registers * 32 * made.warps)),
        np.floor(THREADS / (32.0 * made.warps)),
        np.full(len(made.tiles), float(BLOCKS)),
    )
    found: Floats = np.maximum(1.0, np.minimum.reduce(by))
    return found


def _far(made: Lowered, device: Device) -> float:
    chain = made.plan.program.chain
    total = float(sum(tensor_bytes(chain, t) for t in (*chain.inputs, *chain.outputs)))
    return total / device.bandwidth if total > device.cache else 0.0


def _turns(made: Lowered) -> Floats:
    """The most turns of a statement in one block."""
    most = np.ones(len(made.tiles))
    for _, outer in statements(made.plan.placed[1]):
        inner = tuple(x for x in outer if x.kind not in OUTER)
        most = np.maximum(most, repeats(made.sizes, inner))
    return most


def _product(found: Terms, made: Lowered, s: Compute, dot: Dot, times: Floats) -> None:
    chain, warps = made.plan.program.chain, made.warps
    loaded = made.roles[s.operator.out].left.tensor in chain.inputs
    steps = dot.depth / LEAST
    small = times * ~dot.grouped
    each = dot.row_tiles * dot.column_tiles * steps
    found.add("mma", small * each)
    found.add("mma_all", small * each * warps)
    found.add("chain", small * steps)
    rows = dot.row_tiles * LEAST * loaded
    found.add("operands", small * 2 * dot.depth * (rows + dot.column_tiles * 8) * warps)
    found.add("exchange", small * (dot.along > 1) * (not loaded))
    large = times * dot.grouped
    found.add("wgmma", large)
    found.add("group", large * dot.row_tiles * steps)
    columns = np.maximum(dot.columns, NARROW)
    found.add("group_all", large * dot.row_tiles * steps * columns * warps)


def _map(found: Terms, made: Lowered, s: Compute, dot: Dot | None, times: Floats) -> None:
    size = np.ones(len(made.tiles))
    for a in s.operator.related:
        size = size * made.width(a)
    repeated = dot.repeated if dot is not None else np.ones(len(made.tiles))
    slow = sum(isinstance(e, Call) and e.op in SLOW for e in walk(s.body))
    plain = calls(s.body) + (s.operator.reduce != "none") - slow
    each = size * repeated / (32 * made.warps)
    found.add("special", times * slow * each)
    found.add("special_all", times * slow * size * repeated)
    found.add("simple", times * plain * each)
    found.add("simple_all", times * plain * size * repeated)
    if s.operator.reduce == "none":
        return
    rows = size
    for a in s.operator.over:
        rows = rows / made.width(a)
    found.add("reduce", times)
    found.add("rows", times * rows / (8 * made.warps))
    if dot is not None:
        found.add("across", times * (dot.along > 1))


def _load(found: Terms, made: Lowered, s: Load, inner: tuple[Loop, ...], times: Floats) -> None:
    nbytes = made.nbytes(s.buffer)
    run = _run(made, s)
    issue = np.maximum(1.0, nbytes / (32 * made.warps * np.minimum(VECTOR, run)))
    moved = nbytes * np.maximum(1.0, SECTOR / run)
    found.add("bytes", times * moved)
    found.add("sector", times * moved)
    ahead = (made.stages > 1) & bool(inner and pipelined(inner[-1]))
    flight = np.maximum(made.stages - 1.0, 1.0)
    found.add("turn", ahead * times / flight)
    found.add("issue_ahead", ahead * times * issue)
    if inner:
        found.add("fill", ahead * repeats(made.sizes, inner[:-1]))
        found.add("load", ~ahead * times)
    found.add("issue", ~ahead * times * issue)
    found.add("through", ~ahead * times * nbytes)


def _parts(
    found: Terms, made: Lowered, s: Share | Combine, outer: tuple[Loop, ...], times: Floats
) -> None:
    """A part stores what it shares; what combines them loads it from every part."""
    buffer = next(b for b in made.plan.placed[0] if b.name == s.buffer)
    nbytes = 4 * elements(made.sizes, buffer, [x.axis for x in outer])
    if isinstance(s, Share):
        found.add("part", times * np.maximum(1.0, nbytes / (32 * made.warps * VECTOR)))
        return
    parts = float(made.plan.parts)
    found.add("gather", times * parts * np.maximum(1.0, nbytes / (32 * made.warps * VECTOR)))
    if found.of("second").any() or found.of("ended").any():
        return
    found.add("second", (~made.last).astype(np.float64))
    found.add("ended", made.last.astype(np.float64))


def _run(made: Lowered, s: Load) -> Floats:
    """Bytes of a tile that lie side by side in memory."""
    tensor = made.plan.program.chain.tensor(s.read.tensor)
    width = float(BYTES[tensor.dtype])
    strides: Mapping[int, int] = dict(enumerate(tensor.strides or ()))
    for i, index in enumerate(s.read.indices):
        beside = strides[i] == 1 if strides else i == len(s.read.indices) - 1
        if beside and (a := index.plain) is not None:
            return width * made.sizes.of(a).astype(np.float64)
    return np.full(len(made.tiles), width)
