"""A schedule as one PrimFunc: its parallel loops, their scratch, and its statements in order.

A split has two parallel loops: one over the parts of every iteration of the grid, which store their
partial results in a workspace, and one over the grid, which combines these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import assert_never

import numpy as np

from mcfuser.chain import WHOLE, identifier
from mcfuser.codegen.tensorir.box import fill_box
from mcfuser.codegen.tensorir.dots import copy_left
from mcfuser.codegen.tensorir.epilogue import endings, mapped
from mcfuser.codegen.tensorir.integer import divided, minus, plus, rest, smaller, times
from mcfuser.codegen.tensorir.iterations import iterations
from mcfuser.codegen.tensorir.matrix import configured, permission, split_left
from mcfuser.codegen.tensorir.operands import products_of
from mcfuser.codegen.tensorir.panels import fill_panels
from mcfuser.codegen.tensorir.parameters import ROOT, Shapes, header, parameters
from mcfuser.codegen.tensorir.passes import (
    assign,
    combine,
    fill,
    reduction,
    store,
    store_partial,
    tile_axes,
)
from mcfuser.codegen.tensorir.product import product
from mcfuser.codegen.tensorir.scratch import scratch, workspace
from mcfuser.codegen.tensorir.source import TensorirSource
from mcfuser.codegen.tensorir.window import windowed
from mcfuser.codegen.tensorir.writer import Writer
from mcfuser.expr import Call, Const, read
from mcfuser.lowering.loops import inside_grid
from mcfuser.lowering.tensorir.box import boxes
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.neighbours import groups, sharing
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Statement,
    Store,
    StorePartial,
    loops,
    statements,
)


def generate(
    schedule: Schedule, name: str, lowering: TensorirKnobs, shapes: Shapes | None = None
) -> TensorirSource:
    """The schedule as the text of a PrimFunc.

    `shapes` are the extents that the parameters have in the surrounding graph; without them a
    parameter is flat, unless its extents are known at run time only. Raises Illegal where the
    schedule needs what this back end does not support.
    """
    chain, products = schedule.chain, products_of(schedule, lowering)
    packed = {
        schedule.buffer(tile).tensor: products.panels(tile)
        for tile, kind in products.right.items()
        if kind == "packed"
    }
    given = parameters(chain, packed, shapes or {})
    direct = _direct(schedule.body)
    ends = endings(schedule, products)
    w = Writer(schedule, lowering, products, direct, boxes(schedule), ends)
    tiles = " ".join(f"{a}={n}" for a, n in schedule.tiles)
    w.put(f"# {identifier(chain.name)} as {schedule.expression} {tiles}")
    w.put("@T.prim_func(s_tir=True, private=True)")
    w.lines += header(name, given)
    w.depth += 1
    with w.block(ROOT):
        w.put("T.reads()")
        w.put("T.writes()")
        _phases(w)
    return TensorirSource("\n".join(w.lines) + "\n", name, tuple(packed.items()), given.scalars)


def _direct(body: Sequence[Statement]) -> dict[str, str]:
    """Maps whose next statement stores them: they are written straight to the output."""
    outputs: dict[str, str] = {}
    for s, after in zip(body, (*body[1:], None), strict=True):
        if isinstance(s, Loop):
            outputs |= _direct(s.body)
        elif (
            isinstance(s, Compute)
            and isinstance(after, Store)
            and s.operator.reduce == "none"
            and after.buffer == s.buffer
        ):
            outputs[s.buffer] = after.tensor
    return outputs


def _phases(w: Writer) -> None:
    """The grid as one parallel loop; of a split, one over all parts and one that combines them."""
    if any(o.matrix for o in w.products.operands.values()):
        permission(w)
    grid, body = inside_grid(w.schedule.body)
    w.loops += grid
    split = w.schedule.split
    if split is None:
        _groups(w, body)
        return
    iterating = _iterations(w, w.loops)
    workspace(w, split.body, iterating)
    with _parallel(w, "p", times(iterating, w.schedule.parts)):
        w.put(f"t: T.let[T.int32] = p // {w.schedule.parts}")
        w.put(f"part: T.let[T.int32] = p % {w.schedule.parts}")
        w.parted = split.axis
        _block(w, split.body)
        w.parted = None
    with _parallel(w, "t", iterating):
        _block(w, body[body.index(split) + 1 :])


def _groups(w: Writer, body: Sequence[Statement]) -> None:
    """Blocks in groups of neighbours, which share what the first of them copies."""
    schedule = w.schedule
    buffers = {b.name: b for b in schedule.buffers}
    shared = sharing(schedule.chain, buffers, schedule.body)
    if w.lowering.neighbours == 1 or not shared.axes:
        with _parallel(w, "t", _iterations(w, w.loops)):
            _block(w, body)
        return
    across = [a for a in w.loops if a not in shared.axes]
    blocks = math.prod(schedule.trips(a) for a in shared.axes)
    count = int(groups(np.asarray(blocks), np.asarray(w.lowering.neighbours)))
    each = -(-blocks // count)
    with _parallel(w, "g", times(_iterations(w, across), count)):
        _positions(w, across, divided("g", count))
        first = times(rest("g", count), each)
        w.loops = [*across, *shared.axes]
        scratch(w, body)
        with _unit(w, body):
            for s in shared.loads:
                _load(w, s)
            last = smaller(str(each), minus(str(blocks), first))
            with w.block(f"for t in range({last}):"):
                _positions(w, shared.axes, plus(first, "t"))
                _body(w, [s for s in body if s not in shared.loads])


def _parallel(w: Writer, variable: str, count: str) -> AbstractContextManager[None]:
    return w.block(f"for {variable} in {f'T.parallel({count})' if count != '1' else 'range(1)'}:")


def _iterations(w: Writer, names: Sequence[str]) -> str:
    """Of loops over the tiles of these axes, one inside the other."""
    return reduce(times, (w.trips(a) for a in names), "1")


def _block(w: Writer, body: Sequence[Statement]) -> None:
    """What one iteration of a parallel loop does."""
    _positions(w, w.loops, "t")
    scratch(w, body)
    with _unit(w, body):
        _body(w, body)


def _positions(w: Writer, names: Sequence[str], number: str) -> None:
    """The tiles of these axes that an iteration of the loops over them has, by division of its
    number."""
    trips, uneven = [w.trips(a) for a in names], _uneven(w.schedule.body)
    for i, a in enumerate(names):
        value = divided(number, reduce(times, trips[i + 1 :], "1"))
        value = rest(value, trips[i]) if i else value
        if a in uneven:
            w.put(f"{a}_f: T.let[T.int32] = {value}")
            last = minus(trips[i], "1")
            value = f"T.if_then_else({a}_f % 2 == 0, {a}_f // 2, {last} - {a}_f // 2)"
        w.put(f"{a}_t: T.let[T.int32] = {value}")


def _unit(w: Writer, body: Sequence[Statement]) -> AbstractContextManager[None]:
    """The matrix unit, where statements use it."""
    inside = {s.buffer for s, _ in statements(body) if isinstance(s, Compute)}
    matrix = any(o.matrix for tile, o in w.products.operands.items() if tile in inside)
    return configured(w) if matrix else nullcontext()


def _uneven(body: Sequence[Statement]) -> set[str]:
    """Axes along which blocks run more and more iterations, or fewer. A core takes neighbouring
    blocks, so blocks alternate between both ends of such an axis."""
    return {a for loop in loops(body) for i in (*loop.lo, *loop.hi) for a in i.axes}


def _body(w: Writer, body: Sequence[Statement]) -> None:
    for s, after in zip(body, (*body[1:], None), strict=True):
        if isinstance(s, Loop):
            with w.block(f"for {s.axis}_t in range({iterations(w, s)}):"):
                w.loops.append(s.axis)
                _body(w, s.body)
                w.loops.pop()
        elif isinstance(s, Load):
            _load(w, s)
        elif isinstance(s, Init):
            if isinstance(after, Compute) and after.buffer == s.buffer and _initialises(w, after):
                w.zeroed.add(s.buffer)
            else:
                fill(w, s)
        elif isinstance(s, Compute):
            _compute(w, s)
        elif isinstance(s, SaveOld):
            names = tile_axes(w, s.old)
            assign(w, names, read(s.buffer, *names), s.old)
        elif isinstance(s, Repair):
            assign(w, tile_axes(w, s.buffer), s.h, s.buffer)
        elif isinstance(s, StorePartial):
            store_partial(w, s)
        elif isinstance(s, Combine):
            combine(w, s)
        elif isinstance(s, Store):
            if s.buffer not in w.direct:
                store(w, s)
        else:
            assert_never(s)


def _load(w: Writer, s: Load) -> None:
    """Copies a loaded tile where it is not read as it lies."""
    if s.buffer in w.boxes:
        fill_box(w, s)
    if w.products.right.get(s.buffer) == "panels":
        fill_panels(w, s)
    for tile in w.products.split_with(s.buffer):
        if w.products.operands[tile].dot:
            copy_left(w, tile)
        else:
            split_left(w, tile, masked=False)


def _initialises(w: Writer, s: Compute) -> bool:
    """Whether what accumulates a tile in registers sets these first."""
    return s.buffer in w.products.operands or windowed(w, s)


def _compute(w: Writer, s: Compute) -> None:
    if s.buffer in w.products.maps or s in w.endings.values():
        return  # the product that reads them makes these weights, or what it stores
    if s.buffer in w.products.lefts:
        for tile in w.products.split_with(s.buffer):
            copy_left(w, tile)
        return
    if s.buffer in w.products.operands:
        product(w, s)
    elif s.operator.reduce != "none":
        reduction(w, s)
    else:
        dtype = w.schedule.chain.tensor(s.operator.out).dtype
        body = mapped(s, dtype)
        outside = Const(False if dtype == "bool" else 0 if dtype in WHOLE else 0.0)
        if s.domain is not None:
            body = Call("select", (s.domain, body, outside))
        assign(w, s.operator.axes, body, s.buffer)
