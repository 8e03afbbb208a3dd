"""The source in Gluon of a warp group that computes: its loop, iteration by iteration."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.codegen.triton.frame import TAB, Frame
from mcfuser.codegen.triton.hopper.warpgroup import (
    begin_deferred,
    counted,
    end_deferred,
    left_name,
    of,
    operand,
)
from mcfuser.codegen.triton.loop import block, edge, repeated
from mcfuser.codegen.triton.statement import sides
from mcfuser.expr import Call, Cast, Expr, conjuncts
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.space.bounds import bounds
from mcfuser.space.statement import Compute, Loop, Repair, Statement

Body = tuple[Statement, ...]

UNKNOWN = "0, which no compiler knows"
"""Of a number that they know, all warp groups of a block compute the same addresses. ptxas 12.8
computes these once, in one of three or more groups, and others read registers that hold nothing."""


def computing(frame: Frame, before: Body, after: Body, start: str, stop: str) -> list[str]:
    """All lines of a warp group: the statements before the loop, the loop from position `start` to
    `stop`, and the statements after it. Iterations inside a domain compute maps and reductions
    without masks."""
    groups = of(frame)
    loop = groups.loop
    body = groups.body
    lines = [*block(frame, before), f"{TAB}iteration = gl.program_id(2)  # {UNKNOWN}"]
    if groups.deferred:  # the first iteration issues no deferred products
        step, known = frame.schedule.tile(loop.axis), start.isdigit()
        frame.at[loop.axis] = int(start) // step if known else None
        lines += [] if known else [f"{TAB}{frame.start(loop.axis)} = {start}"]
        lines += _iteration(frame, body, first=True)
        del frame.at[loop.axis]
        start = str(int(start) + step) if known else f"{start} + {step}"
    frame.unmasked, limit = _unmasked(frame, loop, body)
    if frame.unmasked:
        lines.append(f"{TAB}{loop.axis}_inside = {limit}")
    ends = [start, stop, str(frame.schedule.tile(loop.axis))]
    lines += repeated(frame, loop, ends, lambda: _iteration(frame, body, first=False))
    frame.unmasked = {}
    lines += _last_deferred(frame, body) if groups.deferred else []
    for name in groups.lanes:
        whole = frame.tile(name)
        lines.append(f"{TAB}{whole} = gl.convert_layout(gl.sum({whole}, 1), ROWS)")
    lines += block(frame, after)
    for a in reversed([a.name for a in frame.schedule.chain.axes]):
        lines = frame.define(a, lines) if a in frame.at else lines
    return lines


def _iteration(frame: Frame, body: Body, first: bool) -> list[str]:
    """One iteration: its first product, issued together with the deferred products of the iteration
    before; the statements that follow; then the end of the deferred products, their repairs, and
    their next operands."""
    groups = of(frame)
    deferred = _deferred(groups, body)
    mends = tuple(s for s in body if isinstance(s, Repair) and s.buffer in groups.deferred)
    rest = tuple(s for s in body if s not in deferred and s not in mends)
    frame.arrived, frame.deferred = set(), () if first else deferred
    pad = TAB * frame.depth
    lines = block(frame, rest)
    if not first:
        lines += [*end_deferred(frame, deferred), *block(frame, mends)]
    for s in deferred:
        parts: list[str] = []
        a, b, _ = sides(frame, s, groups.layout.dots[s.buffer], parts)
        operand(frame, s, b, 1)  # as it was loaded, or Illegal
        lines += [*parts, f"{pad}{left_name(frame, s)} = {operand(frame, s, a, 0)}"]
    before = counted(frame, groups.stages, deferred=True) if deferred and not first else []
    lines = frame.define(groups.loop.axis, lines)
    return [*counted(frame, groups.stages), *before, *lines, f"{pad}iteration += 1"]


def _last_deferred(frame: Frame, body: Body) -> list[str]:
    """The deferred products of the last iteration."""
    groups = of(frame)
    lines = counted(frame, groups.stages, deferred=True)
    deferred = _deferred(groups, body)
    frame.arrived = set()
    return lines + begin_deferred(frame, deferred) + end_deferred(frame, deferred)


def _deferred(groups: WarpGroups, body: Body) -> tuple[Compute, ...]:
    return tuple(s for s in body if isinstance(s, Compute) and s.buffer in groups.deferred)


# --- iterations inside a domain


def _unmasked(frame: Frame, loop: Loop, body: Body) -> tuple[dict[Statement, Compute], str]:
    """The statements without masks, by statement, for iterations whose positions are all inside the
    domain; and the position, as text, at which such iterations end.

    There are none where the domain is anything but upper bounds by the rows. A product keeps its
    mask: it is begun and waited for in one place.
    """
    domains = {s.operator.domain for s in body if isinstance(s, Compute)} - {None}
    domain = domains.pop() if len(domains) == 1 else None
    if domain is None or loop.lo or not loop.hi:
        return {}, ""
    every = [bounds(c, loop.axis) for c in conjuncts(domain)]
    if any(low or len(high) != 1 for low, high in every):
        return {}, ""
    tile, limit = frame.schedule.tile(loop.axis), ""
    for _, (high,) in every:
        one = f"({edge(frame, high, greatest=False)} + 1) // {tile} * {tile}"
        limit = f"{frame.dialect.word('minimum')}({limit}, {one})" if limit else one
    dots = frame.layout.dots
    maps = (s for s in body if isinstance(s, Compute) and s.buffer not in dots)
    return {s: unmasked for s in maps if (unmasked := _without_mask(s, domain)) != s}, limit


def _without_mask(s: Compute, domain: Expr) -> Compute:
    """A statement where the domain holds everywhere."""
    return replace(s, body=_chosen(s.body, domain), domain=None)


def _chosen(e: Expr, domain: Expr) -> Expr:
    """The expression where the domain holds: selections by the domain are replaced by what they
    select."""
    if isinstance(e, Cast):
        return Cast(_chosen(e.arg, domain), e.dtype)
    if not isinstance(e, Call):
        return e
    if e.op == "select" and e.args[0] == domain:
        return _chosen(e.args[1], domain)
    return Call(e.op, tuple(_chosen(x, domain) for x in e.args))
