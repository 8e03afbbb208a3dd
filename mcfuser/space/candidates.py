"""The candidates of a pruned space as rows of numbers, which is what a search handles.

A row is (family, tile of every axis.., settings): a family is an expression with its splits, the
tiles say which of its loops are dead and so which plan the row stands for, and settings are a
number of the back end's knobs (mcfuser.space.knobs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcfuser.device import Device
from mcfuser.space.knobs import Columns, Feasible, KnobSettings, KnobTable
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space

Candidate = tuple[int, ...]
Estimate = Callable[[Plan, Ints, Columns, Device], Floats]
"""Seconds for tiles [candidates, axes] of a plan under settings of knobs."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """`rows` [candidates, genes], the plans that they stand for, and the settings."""

    space: Space
    table: KnobTable
    rows: Ints
    plans: Mapping[tuple[int, frozenset[str]], Plan]

    def __len__(self) -> int:
        return len(self.rows)

    def candidate(self, row: Any) -> Candidate:
        return tuple(int(v) for v in self.rows[row])

    def plan(self, candidate: Sequence[int]) -> tuple[Plan, dict[str, int]]:
        tiles = dict(zip(self.space.axes, (int(v) for v in candidate[1:-1]), strict=True))
        return self.plans[int(candidate[0]), self.space.dead(tiles)], tiles

    def settings(self, candidate: Sequence[int]) -> KnobSettings:
        return self.table.settings[candidate[-1]]

    def estimates(self, rows: Ints, estimate: Estimate) -> Floats:
        """What is estimated of rows [candidates, genes], seconds; asked once for each plan."""
        seconds = np.empty(len(rows))
        for where in self._of_one_plan(rows):
            plan, _ = self.plan(rows[where[0]])
            settings = self.table.columns(rows[where, -1])
            seconds[where] = estimate(plan, rows[where, 1:-1], settings, self.table.device)
        return seconds

    def _of_one_plan(self, rows: Ints) -> list[Ints]:
        """Where the rows of each plan are: those of a family with the same loops dead."""
        key = rows[:, 0].copy()
        for dead in self.space.dropped(rows[:, 1:-1]).T:
            key = 2 * key + dead
        order = np.argsort(key, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(rows) else []


def candidates(
    space: Space, table: KnobTable, feasible: Feasible, measured: bool = True
) -> Candidates:
    """The candidates of a space that rule 4 has tabled, under every setting of the knobs with which
    they are feasible; those that are only for measuring if they will be `measured`."""
    families: dict[Plan, int] = {}
    parts: list[Ints] = [np.zeros((0, len(space.axes) + 2), np.int64)]
    plans: dict[tuple[int, frozenset[str]], Plan] = {}
    for plan, tiles in space.tables or ():
        at = families.setdefault(replace(plan, dead=frozenset()), len(families))
        plans[at, plan.dead] = plan
        which, numbers = table.choose(plan, tiles, feasible, measured)
        family = np.full((len(which), 1), at)
        parts.append(np.hstack([family, tiles[which], numbers[:, None]]))
    return Candidates(space, table, np.vstack(parts), plans)
