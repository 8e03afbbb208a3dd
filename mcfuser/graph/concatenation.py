"""Concatenations that products of a region read, and whether it reads their parts instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tvm import relax

from mcfuser.graph.dataflow import Dataflow, extents, shape
from mcfuser.graph.parted import PartedRegion, in_parts, lengths

SHARE = 8
"""The longest part is at least so many times as long as all others together."""
SHORT = 16
"""The most positions of all other parts together, which are one tile."""
PARTS = 4
"""The most parts. Each one but the longest is computed after its loop, where all of a block waits:
a copy of two long parts would be cheaper."""
ROWS = 64
"""The most rows of a product by what is concatenated. A product of few rows takes as long as its
operand's elements are read, and a copy of them twice that; one of many takes as long as it
computes."""


def by_parts(
    flow: Dataflow, members: Sequence[relax.Var], closed: AbstractSet[relax.Var]
) -> PartedRegion | None:
    """The region of `members` (in binding order) with the parts of what is concatenated for its
    products; None where nothing is, where it does not pay, or where something needs all at once.

    What is concatenated for others, too, is made for them; the region reads its parts even then,
    the longest of which fills whole tiles more often than all of them. `closed` are the values
    inside other chains, which are read as they are.
    """
    found = dict[relax.Var, None]()
    for v in members:
        if flow.kinds[v] == "product" and math.prod(shape(flow.values[v].args[0])[-2:-1]) <= ROWS:
            found |= dict.fromkeys(_path(flow, flow.values[v].args[1], {*members}, closed))
    found_lengths = {lengths(flow.values[v]) for v in found if flow.kinds[v] == "concatenation"}
    if len(found_lengths) != 1:
        return None
    (parts,) = found_lengths
    others = sum(parts) - max(parts)
    if len(parts) > PARTS or others > SHORT or others * SHARE > max(parts):
        return None
    order = sorted({*found, *members}, key=flow.position.__getitem__)
    return in_parts(flow, members, order, parts)


def _path(
    flow: Dataflow,
    a: relax.Expr,
    members: AbstractSet[relax.Var],
    closed: AbstractSet[relax.Var],
) -> tuple[relax.Var, ...]:
    """The values from a concatenation to an operand `a`, if all but the first are views."""
    path = list[relax.Var]()
    while isinstance(a, relax.Var) and a in flow.values and a not in members and a not in closed:
        if extents(a) is None:
            break
        path.append(a)
        if flow.kinds[a] == "concatenation":
            return tuple(path)
        if flow.kinds[a] != "view" and flow.operator(a) != "broadcast_to":
            break
        a = flow.values[a].args[0]
    return ()
