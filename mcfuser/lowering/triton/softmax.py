"""Lanes past an axis' end in a softmax: its scores are masked where their maximum is taken, and
nothing after it needs a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcfuser.algebra.masks import selected, softmaxes
from mcfuser.expr import Affine, Expr, reads
from mcfuser.space.bounds import bounds
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, statements


@dataclass(frozen=True, slots=True)
class Masked:
    """Scores that are masked where their maximum is taken, over these axes, and its exponentials,
    all as buffers."""

    scores: str
    over: tuple[str, ...]
    weights: frozenset[str]


def masked(schedule: Schedule) -> dict[str, Masked]:
    """By the maximum: where all that needs the scores turns with it, so that nothing computes them
    anew in between."""
    every = [(s, outer) for s, outer in statements(schedule.body) if isinstance(s, Compute)]
    found = {}
    for name, one in softmaxes(schedule.chain).items():
        tops = [(s, outer) for s, outer in every if s.operator.out == name]
        if len(tops) != 1:
            continue
        (top, around), weights = tops[0], set(one.weights)
        beside = [p for s, p in every if s.operator.out in {one.scores.tensor, *weights}]
        (scores,) = reads(top.body)
        single = schedule.buffer(scores.tensor).dtype == "float32"
        if single and all(p[: len(around)] == around for p in beside):
            buffers = frozenset(s.buffer for s, _ in every if s.operator.out in weights)
            found[name] = Masked(scores.tensor, top.operator.over, buffers)
    return found


def ends(schedule: Schedule, one: Masked, a: str) -> bool:
    """The scores hold the lowest number past the end of an axis as they are: a domain ends there,
    as `n <= m` does, for every row that is one."""
    made = [s.body for s, _ in statements(schedule.body)
            if isinstance(s, Compute) and s.buffer == one.scores]  # fmt: skip
    return bool(made) and all(_ends(schedule, e, one.over, a) for e in made)


def _ends(schedule: Schedule, e: Expr, over: Sequence[str], a: str) -> bool:
    if (found := selected(e)) is None:
        return False
    rows = (index for index in bounds(found[0], a)[1] if not {*index.axes} & {*over})
    return any(_inside(schedule, index, a) for index in rows)


def _inside(schedule: Schedule, index: Affine, a: str) -> bool:
    """No position of the chain's axes puts the index past the end of an axis."""
    chain = schedule.chain
    known = all(isinstance(chain.extent(x), int) for x in (a, *index.axes))
    return known and schedule.reach(index, {})[1] < chain.size(a)
