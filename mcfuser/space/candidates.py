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
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.space.knobs import Columns, Feasible, KnobSettings, KnobTable
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space

Candidate = tuple[int, ...]
Tables = tuple[tuple[Plan, Ints], ...]
Estimate = Callable[[Plan, Ints, Columns, Device], Floats]
"""Seconds for tiles [candidates, axes] of a plan under settings of knobs."""

MANY = 1 << 19
"""Candidates of which no more are looked at one by one than are promising: two products whose
weights fill no block have a million, and to list and to price them takes four seconds."""
MOST = 1 << 17
"""Promising candidates: a norm of 16 x 110,592 elements, whose tiles all move the same bytes, had
900,000, which took 11 seconds to look at."""
LOOKED = 1 << 17
"""Tiles whose least times are asked for: of more, as many are drawn."""
NEAR = 2.0
"""Tiles are promising up to this multiple of the least time. Of 14 chains with 4,000 tiles or more
(H200, benchmarks/gpu.py's suites, 2026-11-25), 2 to 21 % are, the 20 best candidates of each have
tiles up to 1.29, and of the 200 best of each all but few: 2.3 in one chain."""


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


def looked_at(space: Space, table: KnobTable) -> Tables | None:
    """The tiles of a space that rule 4 has tabled, whose least times are asked for to find the
    promising ones; None where all of its candidates are."""
    tables = space.tables or ()
    count = sum(len(tiles) for _, tiles in tables)
    if count * len(table) <= MANY:
        return None
    if count > LOOKED:
        return _chosen(tables, np.random.default_rng(0).permutation(count) < LOOKED)
    return tables


def promising(space: Space, table: KnobTable, tables: Tables, times: Sequence[Floats]) -> Space:
    """A space without the tiles that are expected to take NEAR times the least or longer while all
    knobs of its table but the first have their defaults; and of the others, which may be as many
    where only memory counts, those that are expected to take least, in MOST candidates. `tables`
    are the tiles that were looked at, and `times` their least times (`least`)."""
    every = np.concatenate(times)
    best = np.argsort(every, kind="stable")[: max(1, MOST // len(table))]
    if not np.isfinite(every[best[0]]):  # none is feasible with them
        return space
    near = np.zeros(len(every), bool)
    near[best] = every[best] < NEAR * every[best[0]]
    return replace(space, tables=_chosen(tables, near))


def _chosen(tables: Tables, chosen: NDArray[np.bool_]) -> Tables:
    """The tiles of all plans that are chosen, given one flag for each of them; no plan without."""
    each = np.split(chosen, np.cumsum([len(tiles) for _, tiles in tables])[:-1])
    left = [(plan, tiles[kept]) for (plan, tiles), kept in zip(tables, each, strict=True)]
    return tuple((plan, tiles) for plan, tiles in left if len(tiles))


def least(
    plan: Plan, tiles: Ints, table: KnobTable, feasible: Feasible, estimate: Estimate
) -> Floats:
    """The least seconds of each of the tiles under the settings of a table, infinity where none is
    feasible."""
    seconds = np.full(len(tiles), np.inf)
    which, numbers = table.choose(plan, tiles, feasible, measured=False)
    if len(which):
        every = estimate(plan, tiles[which], table.columns(numbers), table.device)
        np.minimum.at(seconds, which, every)
    return seconds


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
