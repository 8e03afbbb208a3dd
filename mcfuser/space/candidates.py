"""The candidates of a pruned space as rows of numbers, which is what a search handles.

A row is (family, tile of every axis.., lowering): a family is an expression with its splits, and
the tiles say which of its loops are dead and so which plan it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space

Candidate = tuple[int, ...]
Predict = Callable[[Plan, Ints, Ints], Floats]
"""Seconds for tiles [candidates, axes] of a plan under lowerings [candidates]."""
Choose = Callable[[Plan, Ints], tuple[Ints, Ints]]
"""For tiles [rows, axes] of a plan, candidates as row numbers and numbers of lowerings."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """`rows` [candidates, genes] and the plans that they stand for."""

    space: Space
    rows: Ints
    plans: Mapping[tuple[int, frozenset[str]], Plan]

    def __len__(self) -> int:
        return len(self.rows)

    def candidate(self, row: Any) -> Candidate:
        return tuple(int(v) for v in self.rows[row])

    def plan(self, candidate: Sequence[int]) -> tuple[Plan, dict[str, int]]:
        tiles = dict(zip(self.space.axes, (int(v) for v in candidate[1:-1]), strict=True))
        return self.plans[int(candidate[0]), self.space.dead(tiles)], tiles

    def each(self, rows: Ints, predict: Predict) -> Floats:
        """What `predict` says of rows, asked once for each plan."""
        found = np.empty(len(rows))
        for where in self._alike(rows):
            plan, _ = self.plan(rows[where[0]])
            found[where] = predict(plan, rows[where, 1:-1], rows[where, -1])
        return found

    def _alike(self, rows: Ints) -> list[Ints]:
        """Where the rows of each plan are: those of a family with the same loops dead."""
        key = rows[:, 0].copy()
        for dead in self.space.dropped(rows[:, 1:-1]).T:
            key = 2 * key + dead
        order = np.argsort(key, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(rows) else []


def candidates(found: Space, choose: Choose) -> Candidates:
    """Every candidate of a space that rule 4 has tabled, under the lowerings chosen for it."""
    families: dict[Plan, int] = {}
    parts: list[Ints] = [np.zeros((0, len(found.axes) + 2), np.int64)]
    plans: dict[tuple[int, frozenset[str]], Plan] = {}
    for plan, tiles in found.tables or ():
        at = families.setdefault(replace(plan, dead=frozenset()), len(families))
        plans[at, plan.dead] = plan
        which, lowerings = choose(plan, tiles)
        family = np.full((len(which), 1), at)
        parts.append(np.hstack([family, tiles[which], lowerings[:, None]]))
    return Candidates(found, np.vstack(parts), plans)
