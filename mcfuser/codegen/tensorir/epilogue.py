"""A map that a product's accumulators go through as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from mcfuser.codegen.tensorir.integer import rest
from mcfuser.codegen.tensorir.operands import Operands, Products
from mcfuser.codegen.tensorir.right import column
from mcfuser.codegen.tensorir.scalar import Typed
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.expr import DISCRETE, Cast, Expr, Read, read
from mcfuser.lowering.tensorir.epilogue import applies, epilogues
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute


def endings(schedule: Schedule, products: Products) -> dict[str, Compute]:
    """The map of each product's tile that its micro-kernel applies."""
    buffers = {b.name: b for b in schedule.buffers}
    found = {}
    for tile, ending in epilogues(schedule.chain, buffers, schedule.body).items():
        o = products.operands.get(tile)
        if o is None or o.matrix or ending.buffer in (*products.maps, *products.lefts):
            continue
        sizes = np.asarray(schedule.tile(o.column)), np.asarray(o.width)
        if applies(schedule.chain, buffers, ending, o.column, *sizes):
            found[tile] = ending
    return found


def mapped(s: Compute, dtype: str) -> Expr:
    """What a map's tile of this type holds."""
    return Cast(s.body, dtype) if dtype in DISCRETE else s.body


def finish(w: Writer, tile: str, at: At, j0: str, value: Callable[[int], str]) -> None:
    """Stores what the map of a product's tile makes of a micro-tile at these positions, of which
    `value` gives vector `v` of row `i`, lane `j`; nothing of rows past the extent."""
    o, ending = w.products.operands[tile], w.endings[tile]
    with w.block(f"for i in T.unroll({o.micro_rows}):"), _inside(w, o, at):
        known = w.invariant(ending.body, o.column, at)
        for v in range(o.width // w.lowering.lanes):
            with w.vector("j", w.lowering.lanes):
                put_mapped(w, tile, {**at, o.column: column(w, o, j0, v)}, value(v), known)


def put_mapped(
    w: Writer, tile: str, here: At, value: str, known: Mapping[Expr, str] = MappingProxyType({})
) -> None:
    """Stores what the map of a product's tile makes of the `value` of an element, at its place."""
    ending, product = w.endings[tile], Typed(value, "float32")

    def element(r: Read) -> Typed:
        return product if r.tensor == tile else w.typed(r, here)

    scalar = replace(w.scalar(here, known), read=element)
    dtype = w.schedule.chain.tensor(ending.operator.out).dtype
    result = scalar.typed(mapped(ending, dtype)).stored(w.stored(ending.buffer))
    w.put(f"{w.element(read(ending.buffer, *ending.operator.axes), here)} = {result}")


def _inside(w: Writer, o: Operands, at: At) -> AbstractContextManager[None]:
    """What is done with a row of a micro-tile only where it is one of the tile's."""
    if o.row is None or rest(w.count(o.row), o.micro_rows) == "0":
        return nullcontext()
    return w.block(f"if {at[o.row]} < {w.count(o.row)}:")
