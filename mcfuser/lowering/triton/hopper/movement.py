"""Whether a schedule would move values among a warp group's threads, or change a tile in a ring.

All tiles of a warp group have the layout of its products' tiles, so tiles and vectors over the same
rows or columns are combined within each thread. Anything else would need a move of values among
threads, which Gluon does not insert by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import assert_never

from mcfuser.chain import Product
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read, axes, uncast
from mcfuser.lowering.deferred import factor
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.products import entering
from mcfuser.space.statement import Compute, Illegal, Repair, statements

MOVED = "a warp group would move values among its threads"


def check_movement(groups: WarpGroups) -> None:
    """Raises Illegal where a statement of a warp group would move values among threads, or would
    compute with a loaded operand of a product before the product takes it."""
    layout = groups.layout
    for s, _ in statements(layout.schedule.body):
        if isinstance(s, Compute):
            roles = layout.dots.get(s.operator.out)
            if roles is not None:
                _check_product(groups, s, roles)
            elif not _stays_in_place(layout, s.body, _mask(groups, s), _order(layout, s)):
                raise Illegal(MOVED)
        elif isinstance(s, Repair):
            by = factor(s) if s.buffer in groups.lanes else None
            if not _stays_in_place(
                layout, by if by is not None else s.h, (), layout.space(s.buffer)
            ):
                raise Illegal(MOVED)


# --- operands of products


def _check_product(groups: WarpGroups, s: Compute, roles: Product) -> None:
    layout = groups.layout
    assert isinstance(s.body, Call)
    first, second = s.body.args
    left, right, ends = first, second, s.masked_factors
    if uncast(first) != roles.left:
        left, right, ends = second, first, ends[::-1]
    dtype = entering({layout.operand_dtype(e) for e in (left, right)})
    sides = ((left, ends[0], roles.left, roles.rows + roles.depth),
             (right, ends[1], roles.right, roles.depth + roles.columns))  # fmt: skip
    for e, past, read, over in sides:
        space = layout.extending(roles.batch + over)
        mask = {a for a in past if needed(groups, a)}
        if s.domain is not None and (inside := {*layout.extending(axes(s.domain))}) <= {*space}:
            mask |= inside
        if read.tensor not in groups.rings:
            if not _stays_in_place(layout, e, mask, space):
                raise Illegal(MOVED)
        elif mask or {dtype, *_casts(e)} != {layout.schedule.buffer(read.tensor).dtype}:
            raise Illegal(f"'{read.tensor}' is changed before it enters a product")


def _casts(e: Expr) -> set[str]:
    return {e.dtype} | _casts(e.arg) if isinstance(e, Cast) else set()


# --- other statements


def _order(layout: TileLayout, s: Compute) -> tuple[str, ...]:
    """The axes of what a statement computes before it reduces it."""
    return layout.space(s.buffer) + layout.extending(s.operator.over)


def _mask(groups: WarpGroups, s: Compute) -> set[str]:
    """The axes along which a statement's values are chosen by a mask."""
    layout = groups.layout
    over = layout.extending(s.masked)
    domain = layout.extending(axes(s.domain)) if s.domain is not None else ()
    return {a for a in over if needed(groups, a)} | {*domain}


def needed(groups: WarpGroups, a: str) -> bool:
    """Some lanes along an axis are outside its extent, so that a mask is needed."""
    layout, schedule = groups.layout, groups.layout.schedule
    ragged = schedule.ragged(a) or (a == groups.rows and groups.whole.ragged(a))
    return layout.width(a) > schedule.tile(a) or ragged


def _stays_in_place(
    layout: TileLayout, e: Expr, mask: Collection[str], order: Sequence[str]
) -> bool:
    """Whether an expression's values, under a mask along some axes, already have the axes of a tile
    in the order `order`, so that no value moves."""
    along = _space(layout, e, order)
    if along is None:
        return False
    space = tuple(a for a in order if a in along or a in mask)
    return space == tuple(order) and (bool(space) or not _constant(layout, e))


def _space(layout: TileLayout, e: Expr, order: Sequence[str]) -> tuple[str, ...] | None:
    """The axes along which an expression's values extend; None where its parts have axes in another
    order than `order`, or axes that the tile lacks."""
    if isinstance(e, Const):
        return ()
    if isinstance(e, Index):
        return layout.extending((e.axis,))
    if isinstance(e, Read):
        space = layout.space(e.tensor)
        return space if space == tuple(a for a in order if a in space) else None
    if isinstance(e, Cast):
        return _space(layout, e.arg, order)
    if not isinstance(e, Call):
        assert_never(e)
    parts = [_space(layout, x, order) for x in e.args]
    if any(p is None for p in parts):
        return None
    along = {a for p in parts if p is not None for a in p}
    return tuple(a for a in order if a in along) if along <= {*order} else None


def _constant(layout: TileLayout, e: Expr) -> bool:
    """The expression is a number that is known when the source is written."""
    if isinstance(e, Index):
        return layout.scalar(e.axis) and layout.schedule.trips(e.axis) == 1
    if isinstance(e, Read):
        return False
    parts = (e.arg,) if isinstance(e, Cast) else e.args if isinstance(e, Call) else ()
    return all(_constant(layout, x) for x in parts)
