"""Lanes past an axis' end in a softmax: its scores are masked where their maximum is taken, and
nothing after it needs a mask of its own."""

from __future__ import annotations

from collections.abc import Mapping

from mcfuser.algebra.masks import softmaxes
from mcfuser.chain import LOWEST, Chain
from mcfuser.expr import Affine, Call, Const, Read, reads
from mcfuser.space.bounds import bounds
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Loop, statements


def masked_scores(schedule: Schedule) -> dict[str, Read]:
    """The scores' buffers by the maximum: where all that needs them turns with it, so that nothing
    computes them anew in between."""
    every = [(s, outer) for s, outer in statements(schedule.body) if isinstance(s, Compute)]
    around: dict[str, list[tuple[Loop, ...]]] = {}
    for s, outer in every:
        around.setdefault(s.operator.out, []).append(outer)
    found = {}
    for name, one in softmaxes(schedule.chain).items():
        places = [p for n in (one.scores.tensor, *one.weights) for p in around.get(n, ())]
        alone = [(s, outer) for s, outer in every if s.operator.out == name]
        if len(alone) != 1 or any(p[: len(alone[0][1])] != alone[0][1] for p in places):
            continue
        (scores,) = reads(alone[0][0].body)
        if schedule.buffer(scores.tensor).dtype == "float32":
            found[name] = scores
    return found


def exponentials(schedule: Schedule, scores: Mapping[str, Read]) -> frozenset[tuple[str, str]]:
    """Buffers of the exponentials of such scores, each with an axis of the maximum."""
    chain, known = schedule.chain, softmaxes(schedule.chain)
    names = {w: chain.operator(top).over for top in scores for w in known[top].weights}
    every = (s for s, _ in statements(schedule.body) if isinstance(s, Compute))
    return frozenset((s.buffer, a) for s in every for a in names.get(s.operator.out, ()))


def ends(schedule: Schedule, scores: Read, a: str) -> bool:
    """The scores hold the lowest number past the end of an axis as they are: a domain ends there,
    as `n <= m` does, for every row that is one."""
    chain = schedule.chain
    made = [s.body for s, _ in statements(schedule.body)
            if isinstance(s, Compute) and s.buffer == scores.tensor]  # fmt: skip
    for e in made:
        if not (isinstance(e, Call) and e.op == "select" and e.args[2] == Const(LOWEST)):
            return False
        _, high = bounds(e.args[0], a)
        if not any(_inside(chain, index, a) for index in high):
            return False
    return bool(made)


def _inside(chain: Chain, index: Affine, a: str) -> bool:
    """No position of the chain's axes puts the index past the end of an axis."""
    if not all(isinstance(chain.extent(x), int) for x in (a, *index.axes)):
        return False
    most = index.offset + sum(max(c, 0) * (chain.size(x) - 1) for x, c in index.terms)
    return most < chain.size(a)
