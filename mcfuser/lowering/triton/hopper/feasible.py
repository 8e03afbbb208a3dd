"""Which schedules warp groups can compute: one of them, or the candidates of a plan at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcfuser.lowering.loops import around_loop
from mcfuser.lowering.triton.hopper.groups import COUNTS, REGISTERS, WarpGroups
from mcfuser.lowering.triton.hopper.movement import check_movement
from mcfuser.lowering.triton.hopper.tensor_map import mappable
from mcfuser.lowering.triton.instructions import ROWS
from mcfuser.lowering.triton.layout import MOST
from mcfuser.lowering.triton.planned import Planned, planned
from mcfuser.lowering.triton.products import row_axes
from mcfuser.lowering.triton.width import IntOrInts, widths
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Illegal

Bools = NDArray[np.bool_]


def check(groups: WarpGroups) -> None:
    """Raises Illegal, with the reason, where warp groups cannot compute a schedule."""
    check_structure(groups)
    _ = groups.deferred


def check_structure(groups: WarpGroups) -> None:
    """The checks of `check` but for registers: those whose outcome is the same for all candidates
    of one kind (`Tiled.kinds`)."""
    _ = groups.around
    _ = groups.rings
    groups.check_extents()
    _ = groups.columns
    check_movement(groups)


def divisible(plan: Plan, tiles: Ints) -> Bools:
    """Which candidates of a plan, by their tiles [candidates, axes], warp groups can compute.

    No candidate that has a kernel is left out; a few are let through for which code generation
    raises Illegal.
    """
    result = np.zeros(len(tiles), bool)
    try:
        if around_loop(plan.placed[1]) is None:
            return result
    except Illegal:
        return result
    tiled = Tiled(plan, tiles)
    for which in tiled.kinds():
        result[which] = tiled.divide(which)
    return result


def mapped(plan: Plan, tiles: Ints) -> Bools:
    """Which candidates have an operand of a product that can come through a tensor map."""
    tiled, some = Tiled(plan, tiles), np.zeros(len(tiles), bool)
    for s in tiled.facts.loads:
        some |= mappable(plan.program.chain, s.read, tiled.sizes.of, tiled.widths.__getitem__)
    return some


@dataclass(frozen=True, eq=False)
class Tiled:
    """A plan's candidates: `tiles` [candidates, axes]."""

    plan: Plan
    tiles: Ints

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.plan, self.tiles)

    @cached_property
    def facts(self) -> Planned:
        return planned(self.plan)

    @cached_property
    def widths(self) -> dict[str, Ints]:
        """Lanes by axis, one count a candidate."""
        lanes = widths(self.plan.program.chain, self.facts.products.values(), self.sizes.of)
        return {a: np.broadcast_to(n, len(self.tiles)) for a, n in lanes.items()}

    def kinds(self) -> Iterator[Ints]:
        """The candidates that may have warp groups, as arrays of their numbers, one array for each
        kind. Candidates of one kind agree, for each axis, on whether it has one lane, one
        iteration, lanes to mask, and a number of rows that warp groups can divide."""
        rows = {a for p in self.facts.products.values() for a in p.rows}
        code, some = np.zeros(len(self.tiles), np.int64), np.zeros(len(self.tiles), bool)
        for a in self.plan.axes:
            tile, width, size = self.sizes.of(a), self.widths[a], self.plan.program.chain.size(a)
            of_groups = np.isin(tile, [n * ROWS for n in COUNTS]) & (a in rows)
            masked = (width > tile) | (size % tile > 0)
            for bit in (width == 1, tile >= size, masked, of_groups):
                code = 2 * code + bit
            some |= of_groups
        at = np.flatnonzero(some)
        for value in np.unique(code[at]):
            yield at[code[at] == value]

    def divide(self, which: Ints) -> Bools:
        """Which of these candidates of one kind can have warp groups."""
        no, first = np.zeros(len(which), bool), which[0]
        axes = row_axes(self.facts.products.values(), lambda a: bool(self.widths[a][first] > 1))
        if len(axes) != 1:
            return no
        (rows,) = axes
        tile = self._of(which, rows, self.sizes.of)
        width = self._of(which, rows, self.widths.__getitem__)
        fits = np.ones(len(which), bool)
        for s in self.facts.loads:
            fits &= mappable(self.plan.program.chain, s.read, tile, width)
        groups = self._example(which[fits])
        if groups is None:
            return no
        registers = np.asarray([REGISTERS.get(n, 0) for n in range(max(COUNTS) + 1)])
        fits &= groups.held(width) <= registers[self.sizes.of(rows)[which] // ROWS]
        for b in self.plan.placed[0]:
            lanes = math.prod(self.widths[a][which] for a in groups.layout.space(b.name))
            fits &= np.asarray(lanes) <= MOST
        return fits

    def _of(
        self, which: Ints, rows: str, count: Callable[[str], IntOrInts]
    ) -> Callable[[str], IntOrInts]:
        """Sizes along the axes of one warp group's tiles: 64 rows, all else as in the block."""
        return lambda a: ROWS if a == rows else np.asarray(count(a))[which]

    def _example(self, which: Ints) -> WarpGroups | None:
        """The warp groups of the first of these candidates whose tiles are not too large, an
        example of its kind; None where candidates of this kind cannot have warp groups."""
        for i in which:
            tiles = dict(zip(self.plan.axes, self.tiles[i].tolist(), strict=True))
            groups = WarpGroups(self.plan.schedule(tiles), 2)
            try:
                _ = groups.layout
            except Illegal:
                continue
            try:
                check_structure(groups)
            except Illegal:
                return None
            return groups
        return None
