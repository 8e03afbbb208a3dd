"""One statement of a schedule as lines of Triton."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from mcfuser.chain import LOWEST, TF32, Product, lowest
from mcfuser.codegen.triton.combine import combine
from mcfuser.codegen.triton.frame import TAB, Frame, MatrixSum, assign, call
from mcfuser.codegen.triton.hopper.warpgroup import multiply, of
from mcfuser.codegen.triton.memory import load, store, store_partial
from mcfuser.codegen.triton.rounded import ROUND
from mcfuser.codegen.triton.tile import (
    TERM,
    TileValue,
    aligned,
    apply,
    both,
    cast,
    literal,
    shape_text,
    spread,
    value,
)
from mcfuser.expr import DISCRETE, Call, Const, Expr, Read, uncast
from mcfuser.lowering.deferred import factor
from mcfuser.lowering.triton.address import Step, address
from mcfuser.lowering.triton.instructions import HALF
from mcfuser.lowering.triton.products import entering
from mcfuser.lowering.uses import reads_of
from mcfuser.space.statement import (
    Combine,
    Compute,
    Fill,
    Init,
    Load,
    Repair,
    SaveOld,
    SimpleStatement,
    Store,
    StorePartial,
    statements,
)

LONG = 24


def write(frame: Frame, s: SimpleStatement) -> list[str]:
    """The lines of a statement in the current iteration. Raises Illegal where Triton cannot express
    it."""
    match s:
        case Load():
            return load(frame, s)
        case Store():
            return store(frame, s)
        case StorePartial():
            return store_partial(frame, s)
        case Combine():
            return combine(frame, s)
        case Init():
            return _assign(frame, s.buffer, frame.full(s.buffer, s.value))
        case SaveOld():
            return _assign(frame, s.old, frame.tile(s.buffer))
        case Compute() if s in frame.unmasked:
            return _either(frame, s, frame.unmasked[s])
        case Compute():
            return _compute(frame, s)
        case Repair():
            return _repair(frame, s)
        case _:
            assert_never(s)


def _assign(frame: Frame, buffer: str, words: str) -> list[str]:
    return assign(frame.depth, frame.tile(buffer), words)


def _either(frame: Frame, s: Compute, unmasked: Compute) -> list[str]:
    """A branch: the statement without masks in iterations inside the domain, with masks in
    others."""
    a, pad = of(frame).loop.axis, TAB * frame.depth
    frame.depth += 1
    inside, outside = _compute(frame, unmasked), _compute(frame, s)
    frame.depth -= 1
    return [f"{pad}if {frame.start(a)} < {a}_inside:", *inside, f"{pad}else:", *outside]


def _repair(frame: Frame, s: Repair) -> list[str]:
    lines: list[str] = []
    space = frame.layout.space(s.buffer)
    if s.buffer in frame.lanes and (by := factor(s)) is not None:
        factors = value(by, frame.scope(f"{s.buffer}_repair", space, lines))
        rows = spread(frame.dialect, factors, space, frame.layout.width)
        name = frame.tile(s.buffer)
        return lines + _assign(frame, s.buffer, f"by_lane({rows.text}, {name}) * {name}")
    repaired = value(s.h, frame.scope(f"{s.buffer}_repair", space, lines))
    repaired = cast(frame.dialect, repaired, frame.dtype(s.buffer))
    whole = spread(frame.dialect, repaired, space, frame.layout.width)
    return lines + _assign(frame, s.buffer, whole.text)


# --- arithmetic


def _compute(frame: Frame, s: Compute) -> list[str]:
    lines = _filled(frame, s.fill) if s.fill is not None else []
    roles = frame.layout.dots.get(s.operator.out)
    if roles is not None:
        return lines + _dot(frame, s, roles)
    to = frame.dialect
    kept = frame.layout.space(s.buffer)
    over = frame.layout.extending(s.operator.over)
    scope = frame.scope(s.buffer, kept + over, lines)
    dtype = frame.dtype(s.buffer)
    inner, times = _factor(s) if dtype not in DISCRETE else (s.body, "")
    body = value(inner, scope)
    body = cast(to, body, "float32") if body.dtype in HALF else body
    steps = dtype in DISCRETE or (body.dtype in DISCRETE and s.operator.reduce != "none")
    body = cast(to, body, dtype) if steps else body
    if s.operator.reduce == "none":
        if s.domain is not None:
            nothing = cast(to, literal(0), dtype) if dtype in DISCRETE else literal(0.0)
            body = apply("select", (value(s.domain, scope), body, nothing), scope)
        body = spread(to, cast(to, body, dtype), kept, frame.layout.width)
        return lines + _assign(frame, s.buffer, body.text)
    conditions = frame.masks(s.masked)
    if s.domain is not None:
        conditions.append(cast(to, value(s.domain, scope), "bool"))
    body = _masked(frame, s, body, conditions, kept + over, lines)
    body = spread(to, cast(to, body, dtype), kept + over, frame.layout.width)
    return lines + _reduce(frame, s, body, kept, times)


def _filled(frame: Frame, fill: Fill) -> list[str]:
    """The buffer with the fill's number past the ends of its axes, at which groups, that wait for
    nothing in an iteration, look only in turns that reach them."""
    layout, chain, tile = frame.layout, frame.schedule.chain, frame.schedule.tile
    whole = {a for a in fill.axes if layout.width(a) == tile(a)}  # no lanes of the next tile
    reached = [a for a in fill.axes if a not in whole or a not in fill.ended]
    space, name = layout.space(fill.buffer), frame.tile(fill.buffer)
    mask = both(frame.dialect, frame.masks(reached), space)
    if mask is None:
        return []
    number = "LOWEST" if fill.value == LOWEST else literal(fill.value).text
    inside = aligned(frame.dialect, mask, space).text
    words = f"{frame.dialect.word('where')}({inside}, {name}, {number})"
    (a, *more) = reached
    if frame.groups is None or more or a not in whole or frame.at[a] is not None:
        return assign(frame.depth, name, words)
    test = f"{TAB * frame.depth}if {frame.start(a)} > {chain.size(a) - tile(a)}:"
    return [test, *assign(frame.depth + 1, name, words)]


def _factor(s: Compute) -> tuple[Expr, str]:
    """What a reduction takes, and a factor for its result: that of a maximum need not be multiplied
    element by element. Outside a domain the maximum is the lowest number, not a multiple of it."""
    e = s.body
    if s.operator.reduce == "max" and s.domain is None and isinstance(e, Call) and e.op == "mul":
        x, c = e.args
        if isinstance(c, Const) and c.value > 0 and not isinstance(x, Const):
            return x, f" * {literal(float(c.value)).text}"
    return e, ""


def _reduce(
    frame: Frame, s: Compute, body: TileValue, kept: tuple[str, ...], times: str
) -> list[str]:
    kind = s.operator.reduce
    words = body.text
    if _mixed(frame, s, body, kept):
        turned = aligned(frame.dialect, body, (body.space[-1], *kept))
        words = f"{frame.dialect.word(kind)}({turned.text}, 0)"
        return _accumulate(frame, s, TileValue(f"{words}{times}", kept, body.dtype))
    for i in reversed(range(len(kept), len(body.space))):
        whole = f"{frame.dialect.word(kind)}({words}, {i})"
        words = whole if s.buffer not in frame.lanes else f"lanes({words})"
    words = f"{words}{times}" if words != body.text else f"{body.within(TERM)}{times}"
    return _accumulate(frame, s, TileValue(words, kept, body.dtype))


def _mixed(frame: Frame, s: Compute, body: TileValue, kept: tuple[str, ...]) -> bool:
    """Whether Triton would add up wrong elements along the last dimension of a tile.

    Before release 3.9 it moves such a sum of a tile that was just loaded in float32 out of the
    loop, by a reshape that mixes a thread's elements. Only where those along the last dimension
    alone lie side by side they stay in their rows (Triton's issue 11735).
    """
    read, chain = s.body, frame.schedule.chain
    if not isinstance(read, Read) or read.tensor not in chain.inputs:
        return False
    tensor = chain.tensor(read.tensor)
    loaded = tensor.dtype == body.dtype == "float32" and body.text.isidentifier()
    moves, _ = address(chain, tensor, read.indices)
    beside = any(moves.get(a) == (Step(1),) for a in kept)
    in_loop = frame.groups is None and frame.depth > 1
    return loaded and beside and in_loop and len(body.space) == len(kept) + 1


def _accumulate(frame: Frame, s: Compute, step: TileValue) -> list[str]:
    name, larger = frame.tile(s.buffer), frame.dialect.word("maximum")
    if s.buffer in frame.fresh:
        least = repr(int(lowest(step.dtype))) if step.dtype in DISCRETE else "LOWEST"
        clamped = f"{larger}({step.text}, {least})"  # a row of nothing but minus infinities
        return _assign(frame, s.buffer, clamped if s.operator.reduce == "max" else step.text)
    if s.operator.reduce == "max":
        return _assign(frame, s.buffer, f"{larger}({name}, {step.text})")
    return [f"{TAB * frame.depth}{name} += {step.text}"]


def _masked(
    frame: Frame,
    s: Compute,
    body: TileValue,
    conditions: Sequence[TileValue],
    order: Sequence[str],
    lines: list[str],
) -> TileValue:
    """The value where all conditions hold, else the identity of the reduction."""
    to = frame.dialect
    mask = both(to, conditions, order)
    if mask is None:
        return body
    identity = "LOWEST" if s.operator.reduce == "max" else "0.0"
    if (dtype := frame.dtype(s.buffer)) in DISCRETE:
        identity = repr(int(lowest(dtype))) if s.operator.reduce == "max" else "0"
    space = tuple(a for a in order if a in mask.space or a in body.space)
    inside = aligned(to, mask, space).text
    if len(inside) > LONG:
        number = f"_{len(lines)}" if lines else ""
        inside = frame.part(f"{s.buffer}_mask{number}", inside, lines)
    words = f"{to.word('where')}({inside}, {aligned(to, body, space).text}, {identity})"
    return TileValue(words, space, body.dtype)


# --- matrix products


def _dot(frame: Frame, s: Compute, roles: Product) -> list[str]:
    lines: list[str] = []
    a, b, dtype = sides(frame, s, roles, lines)
    if frame.groups is not None:
        return lines + multiply(frame, s, a, b)
    batch, rows, columns, _ = _groups(frame, roles)
    to, precision = frame.dialect, list[str]()
    if dtype == "float32":
        precision = [f'input_precision="{frame.layout.dot}"']
        a, b = (f"{ROUND}({x})" if frame.layout.dot == TF32 else x for x in (a, b))
    name, kept = frame.tile(s.buffer), frame.layout.space(s.buffer)
    groups = [g for g in (batch, rows, columns) if g]
    if all(len(g) == 1 for g in groups) and kept == tuple(g[0] for g in groups):
        accumulator = [] if s.buffer in frame.fresh else [name]
        lines += call(frame.depth, f"{name} = {to.moving('dot')}", [a, b, *accumulator, *precision])
        return lines + (_ended(frame, name) if _shares_operand(frame, s, roles) else [])
    flat = tuple(x for g in groups for x in g)
    if (sums := frame.summed.get(s.buffer)) is not None:
        extents = tuple(math.prod(map(frame.layout.width, g)) for g in groups)
        matrix = frame.named("part", f"{name}_matrix")
        sums[name] = MatrixSum(matrix, flat, extents)
        lines += call(frame.depth, f"{matrix} = {to.moving('dot')}", [a, b, matrix, *precision])
        return lines + (_ended(frame, matrix) if _shares_operand(frame, s, roles) else [])
    shape = shape_text([frame.layout.width(x) for x in flat])
    step = frame.named("part", f"{s.buffer}_step")
    lines += call(frame.depth, f"{step} = {to.moving('dot')}", [a, b, *precision])
    words = f"{to.moving('reshape')}({step}, {shape})"
    return lines + _accumulate(frame, s, aligned(to, TileValue(words, flat, "float32"), kept))


def _shares_operand(frame: Frame, s: Compute, roles: Product) -> bool:
    """Whether an operand of a product is a loaded tile that something else than products reads."""
    loaded = {r.tensor for r in (roles.left, roles.right)} & frame.layout.loads.keys()
    others = (o for o, _ in statements(frame.schedule.body) if isinstance(o, Compute))
    return any(
        o.operator.out not in frame.layout.dots and loaded & {r.tensor for r in reads_of(o)}
        for o in others
    )


def _ended(frame: Frame, name: str) -> list[str]:
    """The line after which a product has ended, for its result passes through an empty
    instruction.

    Where a tile is read by a product of a warp group and by threads, Triton has a copy too few of
    it: the next tile is loaded over the one that an unfinished product reads (Triton's issue 6691).
    """
    words = f'"", "=f,0", [{name}], dtype=tl.float32, is_pure=True, pack=1'
    return assign(frame.depth, name, f"tl.inline_asm_elementwise({words})")


def sides(frame: Frame, s: Compute, roles: Product, lines: list[str]) -> tuple[str, str, str]:
    """Both operands of a product and their dtype, after the lines that they need."""
    assert isinstance(s.body, Call)
    first, second = s.body.args
    ends = s.masked_factors
    left, right = first, second
    if uncast(first) != roles.left:
        left, right, ends = second, first, ends[::-1]
    dtype = entering({frame.layout.operand_dtype(e) for e in (left, right)})
    batch, rows, columns, depth = _groups(frame, roles)
    a = _operand(frame, s, left, ends[0], (batch, rows, depth), dtype, lines)
    b = _operand(frame, s, right, ends[1], (batch, depth, columns), dtype, lines)
    return a, b, dtype


def _groups(frame: Frame, roles: Product) -> tuple[tuple[str, ...], ...]:
    """The axes of each role that extend a tile."""
    every = (roles.batch, roles.rows, roles.columns, roles.depth)
    return tuple(map(frame.layout.extending, every))


def _operand(
    frame: Frame, s: Compute, e: Expr, ends: Sequence[str], groups: Sequence[tuple[str, ...]],
    dtype: str, lines: list[str],
) -> str:  # fmt: skip
    """One side of a product: as wide as its axes, one dimension a group, zero past these ends."""
    if isinstance(e, Read) and e.tensor in frame.matrices:
        whole = TileValue(frame.tile(e.tensor), tuple(map("_".join, groups)), frame.dtype(e.tensor))
        return cast(frame.dialect, whole, dtype).text
    space = tuple(x for g in groups for x in g)
    to = frame.dialect
    side = cast(to, value(e, frame.scope(s.buffer, space, lines)), dtype)
    conditions = frame.masks(ends)
    if s.domain is not None:
        domain = value(s.domain, frame.scope(s.buffer, s.operator.related, lines))
        if set(domain.space) <= set(space):
            conditions.append(cast(to, domain, "bool"))
    side = _masked(frame, s, side, conditions, space, lines)
    side = spread(to, side, space, frame.layout.width)
    if all(len(g) <= 1 for g in groups):
        return side.text
    sizes = [math.prod(frame.layout.width(x) for x in g) for g in groups if g]
    text = side.text
    if not text.isidentifier():
        text = frame.part(f"{s.buffer}_part_{len(lines) + 1}", text, lines)
    return f"{to.moving('reshape')}({text}, {shape_text(sizes)})"
