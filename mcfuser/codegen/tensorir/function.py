"""A schedule as one PrimFunc: its head, its scratch, and its statements in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mcfuser.chain import Bounds
from mcfuser.codegen.tensorir.operands import Products, products_of
from mcfuser.codegen.tensorir.passes import assign, fill, reduction, store, tile_axes
from mcfuser.codegen.tensorir.product import pack, product
from mcfuser.codegen.tensorir.source import Lowering, Panels, Source, flat_size
from mcfuser.codegen.tensorir.writer import SLOTS, Writer
from mcfuser.expr import Call, Const, read
from mcfuser.space.schedule import (
    Compute,
    Dim,
    Illegal,
    Init,
    Keep,
    Load,
    Loop,
    Repair,
    Schedule,
    Statement,
    Store,
    statements,
)

Shapes = Mapping[str, tuple[int, ...]]


def generate(
    schedule: Schedule, name: str, lowering: Lowering, shapes: Shapes | None = None
) -> Source:
    """The schedule as the text of a PrimFunc.

    `shapes` are the extents that the parameters have in the surrounding graph; without them a
    parameter is flat. Raises Illegal where the schedule asks for what this back end has not.
    """
    for a in schedule.chain.axes:
        if isinstance(a.extent, Bounds):
            raise Illegal(f"the extent of axis '{a.name}' is known at run time only")
    products = products_of(schedule, lowering)
    packed = {
        schedule.buffer(tile).tensor: products.panels(tile)
        for tile, kind in products.right.items()
        if kind == "packed"
    }
    w = Writer(schedule, lowering, products, _direct(schedule.body))
    tiles = " ".join(f"{a}={n}" for a, n in schedule.tiles)
    w.put(f"# {schedule.chain.name}: {schedule.expression} {tiles}")
    w.put("@T.prim_func(s_tir=True, private=True)")
    with w.block(f"def {name}({', '.join(_parameters(schedule, packed, shapes or {}))}):"):
        w.put('T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})')
        for n in (*schedule.chain.inputs, *schedule.chain.outputs):
            size = math.prod(_extents(schedule, n, packed, shapes or {}))
            dtype = schedule.chain.tensor(n).dtype
            w.put(f'{n}_flat = T.decl_buffer(({size},), "{dtype}", data={n}_arg.data)')
        with w.block('with T.sblock("root"):'):
            w.put("T.reads()")
            w.put("T.writes()")
            _grid(w)
    return Source("\n".join(w.lines) + "\n", name, tuple(packed.items()))


def _extents(
    schedule: Schedule, name: str, packed: Mapping[str, Panels], shapes: Shapes
) -> tuple[int, ...]:
    if name in packed:
        return (packed[name].size(schedule.chain.shape(name)),)
    return shapes.get(name) or (flat_size(schedule.chain, name),)


def _parameters(schedule: Schedule, packed: Mapping[str, Panels], shapes: Shapes) -> list[str]:
    return [
        f"{n}_arg: T.Buffer({_extents(schedule, n, packed, shapes)}, "
        f'"{schedule.chain.tensor(n).dtype}")'
        for n in (*schedule.chain.inputs, *schedule.chain.outputs)
    ]


def _direct(body: Sequence[Statement]) -> dict[str, str]:
    """Maps whose next statement stores them: they are written straight to the output."""
    found: dict[str, str] = {}
    for s, after in zip(body, (*body[1:], None), strict=True):
        if isinstance(s, Loop):
            found |= _direct(s.body)
        elif (
            isinstance(s, Compute)
            and isinstance(after, Store)
            and s.operator.reduce == "none"
            and after.buffer == s.buffer
        ):
            found[s.buffer] = after.tensor
    return found


def _grid(w: Writer) -> None:
    """The grid as one parallel loop, its axes by division."""
    body = w.schedule.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "grid":
        w.loops.append(body[0].axis)
        body = body[0].body
    trips = [w.schedule.trips(a) for a in w.loops]
    total = math.prod(trips)
    with w.block(f"for t in T.parallel({total}):" if total > 1 else "for t in range(1):"):
        for i, a in enumerate(w.loops):
            inner = math.prod(trips[i + 1 :])
            value = f"t // {inner}" if inner > 1 else "t"
            value += f" % {trips[i]}" if i else ""
            w.put(f"{a}_t: T.let[T.int32] = {value}")
        _scratch(w)
        _body(w, body)


def _scratch(w: Writer) -> None:
    """All scratch at the head of a block, where its allocation costs nothing that matters."""
    for b in w.schedule.buffers:
        if w.products.right.get(b.name) == "panels":
            _allocate(w, f"{b.name}_panels", _panel_shape(w, w.products, b.name))
        elif b.tensor not in w.schedule.chain.inputs and b.name not in w.direct:
            _allocate(w, f"{b.name}_tile", [w.extent(d) for d in b.dims] or [1])
    for s, _ in statements(w.schedule.body):
        if isinstance(s, Compute) and s.buffer in w.products.operands and s.domain is not None:
            left = w.products.operands[s.buffer].roles.left
            _allocate(w, f"{s.buffer}_masked", [w.extent(Dim(i)) for i in left.indices])
    every = w.products.operands.values()
    rows = max((o.micro_rows for o in every), default=0)
    for v in range(max((o.width // w.lowering.lanes for o in every), default=0)):
        _allocate(w, f"acc{v}", [rows, w.lowering.lanes])
    _allocate(w, "lane", [w.lowering.lanes])
    _allocate(w, "once", [SLOTS])


def _allocate(w: Writer, name: str, shape: Sequence[int]) -> None:
    w.put(f'{name} = T.alloc_buffer({tuple(shape)}, "float32")')


def _panel_shape(w: Writer, products: Products, tile: str) -> list[int]:
    o = products.user(tile)
    lead = [n for a in o.lead if (n := w.schedule.tile(a)) > 1]
    depth = math.prod(w.schedule.tile(a) for a in o.roles.depth)
    return [*lead, -(-w.schedule.tile(o.column) // o.width), depth, o.width]


def _body(w: Writer, body: Sequence[Statement]) -> None:
    for s, after in zip(body, (*body[1:], None), strict=True):
        if isinstance(s, Loop):
            with w.block(f"for {s.axis}_t in range({w.schedule.trips(s.axis)}):"):
                w.loops.append(s.axis)
                _body(w, s.body)
                w.loops.pop()
        elif isinstance(s, Load):
            if w.products.right.get(s.buffer) == "panels":
                pack(w, s)
        elif isinstance(s, Init):
            starts = isinstance(after, Compute) and after.buffer == s.buffer
            if starts and s.buffer in w.products.operands:
                w.zeroed.add(s.buffer)
            else:
                fill(w, s)
        elif isinstance(s, Compute):
            _compute(w, s)
        elif isinstance(s, Keep):
            names = tile_axes(w, s.old)
            assign(w, names, read(s.buffer, *names), s.old)
        elif isinstance(s, Repair):
            assign(w, tile_axes(w, s.buffer), s.h, s.buffer)
        elif s.buffer not in w.direct:
            store(w, s)


def _compute(w: Writer, s: Compute) -> None:
    if s.buffer in w.products.operands:
        product(w, s)
    elif s.operator.reduce != "none":
        reduction(w, s)
    else:
        outside = Const(0.0)
        body = s.body if s.domain is None else Call("select", (s.domain, s.body, outside))
        assign(w, s.operator.axes, body, s.buffer)
