"""Memory of a function: the tiles of a block in its core's cache, and the parts' workspace."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcfuser.codegen.tensorir.dots import dots_left_shape
from mcfuser.codegen.tensorir.integer import shape
from mcfuser.codegen.tensorir.made import code_table, fill_table, made_weights
from mcfuser.codegen.tensorir.matrix import left_shape, right_shape
from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.scalar import held_as
from mcfuser.codegen.tensorir.winograd import winograd_shapes
from mcfuser.codegen.tensorir.writer import SLOTS, Writer
from mcfuser.lowering.tensorir.dots import STORED
from mcfuser.space.statement import (
    Combine,
    Compute,
    Dim,
    Init,
    Load,
    SaveOld,
    Statement,
    StorePartial,
)
from mcfuser.space.statement import statements as every


def scratch(w: Writer, body: Sequence[Statement]) -> None:
    """All that these statements need, at the head of a block, where its allocation costs nothing
    that matters."""
    inside = [s for s, _ in every(body)]
    written = {s.buffer for s in inside if isinstance(s, (Init, Compute, Combine))}
    written |= {s.old for s in inside if isinstance(s, SaveOld)}
    loaded = {s.buffer for s in inside if isinstance(s, Load)}
    for s in inside:
        if isinstance(s, Load) and s.buffer in w.boxes:
            box = w.boxes[s.buffer]
            dtype = w.schedule.chain.tensor(box.tensor).dtype
            _allocate(w, f"{box.name}_box", [box.size], held_as(dtype))
    for b in w.schedule.buffers:
        if b.name in loaded and w.products.right.get(b.name) == "panels":
            o = w.products.user(b.name)
            dtype = STORED[o.dot][1] if o.dot else "float32"
            _allocate(w, f"{b.name}_panels", _panel_shape(w, o), dtype)
        elif b.name in written - w.products.lefts - {*w.direct, *w.products.maps, *w.endings}:
            extents = _tile_shape(w, b.name)
            if w.products.addressed(b.name):
                _allocate_whole(w, f"{b.name}_tile", math.prod(extents), "float32")
            else:
                _allocate(w, f"{b.name}_tile", extents, w.held(b.name))
    computes = [s for s in inside if isinstance(s, Compute) and s.buffer in w.products.operands]
    operands = [w.products.operands[s.buffer] for s in computes]
    for s, o in zip(computes, operands, strict=True):
        if s.domain is not None:
            left = [w.extent(Dim(i)) for i in o.roles.left.indices]
            _allocate(w, f"{s.buffer}_masked", left)
        if o.matrix:
            _allocate_whole(w, f"{s.buffer}_right", math.prod(right_shape(w, o)), "uint32")
        for name, extents in winograd_shapes(w, s.buffer, o):
            _allocate(w, name, extents)
    copied = {s.buffer for s, o in zip(computes, operands, strict=True) if o.copied}
    for name in sorted({w.products.splits(tile) for tile in copied}):
        o = w.products.operands[name]
        if o.matrix:
            _allocate_whole(w, f"{name}_left", math.prod(left_shape(w, o)), "uint16")
        else:
            _allocate(w, f"{name}_left", [math.prod(dots_left_shape(w, o))], STORED[o.dot][0])
    _allocate_sums(w, "acc", [o for o in operands if not o.matrix and not o.dot], "float32")
    _allocate_made(w, operands)
    _allocate_sums(w, "sum", [o for o in operands if o.dot], "int32")
    _allocate_sums(w, "zero", [o for o in operands if _has_zero(o)], "int32", rows=1)
    _allocate(w, "lane", [w.lowering.lanes])
    _allocate(w, "once", [SLOTS])


def workspace(w: Writer, body: Sequence[Statement], iterations: str) -> None:
    """Allocates the partial results of every part of a split, for each iteration of the grid."""
    for s in body:
        if isinstance(s, StorePartial):
            extents: list[int | str] = [iterations, w.schedule.parts, *_tile_shape(w, s.buffer)]
            _allocate(w, f"{s.buffer}_parts", extents, w.held(s.buffer))


def _allocate(w: Writer, name: str, extents: Sequence[int | str], dtype: str = "float32") -> None:
    w.put(f'{name} = T.alloc_buffer({shape(str(n) for n in extents)}, "{dtype}")')


def _allocate_whole(w: Writer, name: str, size: int, dtype: str) -> None:
    """Memory that the matrix unit reads or writes by addresses: of one dimension, and both ends are
    touched, for TVM makes extents of what it sees in use, smaller or larger than they were."""
    _allocate(w, name, [size], dtype)
    for end in (0, size - 1):
        w.put(f"{name}[{end}] = T.{dtype}(0)")


def _has_zero(o: Operands) -> bool:
    return o.numbers is not None and not o.numbers.exact


def _allocate_sums(
    w: Writer, name: str, operands: Sequence[Operands], dtype: str, rows: int = 0
) -> None:
    """The accumulators of the micro-tiles of products, a column of vectors each; of so many `rows`
    where these are given."""
    rows, lanes = rows or max((o.micro_rows for o in operands), default=0), w.lowering.lanes
    for v in range(max((o.width // lanes for o in operands), default=0)):
        _allocate(w, f"{name}{v}", [rows, lanes], dtype)


def _allocate_made(w: Writer, operands: Sequence[Operands]) -> None:
    """Sums of the products of blocks of weights that are made in registers, and what numbers are
    looked up by and in."""
    made = [(o, m) for o in operands if (m := made_weights(w, o)) is not None]
    tables = [(o, table) for o, m in made if (table := code_table(w, m)) is not None]
    _allocate_sums(w, "part", [o for o, _ in made], "float32")
    _allocate_sums(w, "code", [o for o, _ in tables], "int32", rows=1)
    _allocate_sums(w, "number", [o for o, _ in tables], "float32", rows=1)
    for o, table in tables:
        _allocate(w, f"{o.right}_codes", [len(table.values)])
        fill_table(w, o, table)


def _tile_shape(w: Writer, name: str) -> list[int]:
    return [w.extent(d) for d in w.schedule.buffer(name).dims] or [1]


def _panel_shape(w: Writer, o: Operands) -> list[int]:
    lead = [n for a in o.lead if (n := w.schedule.tile(a)) > 1]
    panels = -(-w.schedule.tile(o.column) // o.width)
    depth = math.prod(w.schedule.tile(a) for a in o.roles.depth)
    at_once = o.dot or 1
    return [*lead, panels, -(-depth // at_once), at_once * o.width]
