"""The loops around each operator under a tiling expression: all that its statements follow from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mcfuser.chain import Operator
from mcfuser.space.expression import Expression
from mcfuser.space.nest import SPLIT
from mcfuser.space.program import Program
from mcfuser.space.statement import Illegal


@dataclass(frozen=True, slots=True)
class Nesting:
    """The loops that form the grid, batch axes first; for each operator of a chain the loops around
    it, outermost first; and the loop that is split into parts. Many expressions have equal ones,
    since a loop of one trip is in none."""

    grid: tuple[str, ...]
    loops: tuple[tuple[str, ...], ...]
    split: str | None = None


def nesting(
    program: Program, expression: Expression, dead: Collection[str] = (), split: str | None = None
) -> Nesting:
    """The loops of an expression with some of them dead (MCFuser section III-B).

    Raises Illegal where the loop to be split is not the outermost one below the grid.
    """
    path = [a for a in expression.grid if a not in dead]
    grid = (*program.batch, *path)
    loops = []
    for o in program.chain.operators:
        below = [a for a in expression.path(o.related) if a not in dead][len(path) :]
        kept = _kept(program, o, below)
        if split in kept[1:]:
            raise Illegal(f"the loop over '{split}' is not the outermost one below the grid")
        parts = [split + SPLIT] if split is not None and split in kept else []
        loops.append((*grid, *parts, *kept))
    return Nesting(grid, tuple(loops), split)


def _kept(program: Program, o: Operator, path: list[str]) -> list[str]:
    """The loops of a path below the grid that an operator runs in: up to its rightmost related
    one, without those over which all that it needs is reduced before."""
    while path and path[-1] not in o.related:
        path = path[:-1]
    finished = {a for p in program.ancestors[o.out] for a in program.chain.operator(p).over}
    inside, kept = False, list[str]()
    for a in path:
        if a in o.related or (a not in finished and not inside):
            kept.append(a)
        inside = inside or a in o.over
    return kept
