"""Maps that a product's micro-kernel applies to its accumulators before it stores them.

A pass over the product's tile is saved then, and the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, contiguous_axes
from mcfuser.expr import Call, axes, axis, read, reads, walk
from mcfuser.lowering.tensorir.micro import micro_product, panels_are_whole
from mcfuser.lowering.uses import touched
from mcfuser.space.plan import Ints
from mcfuser.space.statement import (
    Buffer,
    Compute,
    Init,
    Load,
    Loop,
    SaveOld,
    Statement,
    statements,
)

LONG = frozenset(("exp", "exp2", "log", "tanh", "erf", "pow"))
"""Functions of many steps. A micro-kernel would have them written out for each accumulator."""
MOST = 12
"""The most calls of such a map."""


def epilogues(
    chain: Chain, buffers: Mapping[str, Buffer], body: Sequence[Statement]
) -> dict[str, Compute]:
    """The map of each product's tile that can be applied to accumulators: all of the product is
    summed up in one statement, and nothing else reads it."""
    uses: dict[str, list[Statement]] = {}
    for each, _ in statements(body):
        for name in touched(each):
            uses.setdefault(name, []).append(each)
    found: dict[str, Compute] = {}
    for inside in _lists(body):
        for i, (first, s) in enumerate(pairwise(inside)):
            if not isinstance(first, Init) or not isinstance(s, Compute):
                continue
            if first.buffer != s.buffer or micro_product(chain, buffers, s) is None:
                continue
            others = [x for x in uses[s.buffer] if x not in (first, s)]
            ending = others[0] if len(others) == 1 else None
            if not isinstance(ending, Compute) or ending not in inside or not _ends(s, ending):
                continue
            taken = {r.tensor for r in reads(ending.body)} - {s.buffer}
            if not _made(taken, chain, inside[i + 2 : inside.index(ending)]):
                found[s.buffer] = ending
    return found


def applies(
    chain: Chain, buffers: Mapping[str, Buffer], ending: Compute, column: str, tile: Ints,
    width: Ints,
) -> NDArray[np.bool_]:  # fmt: skip
    """Whether such a map is applied to accumulators, for some candidates' tiles of the columns and
    widths of panels. Its results must lie side by side along these; and where it reads an input
    along them, or is an output, none may lie past the extent."""
    o, whole = ending.operator, panels_are_whole(chain, column, tile, width)
    inputs = (r for r in reads(ending.body) if buffers[r.tensor].tensor in chain.inputs)
    output = o.out in chain.outputs
    free = not output and not any(column in axes(r) for r in inputs)
    beside = contiguous_axes(chain, read(o.out, *o.axes)) if output else o.axes[-1:]
    return (whole | free) & (column in beside)


def _lists(body: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    """The statements of a body, and those of each loop inside it."""
    yield body
    for s in body:
        if isinstance(s, Loop):
            yield from _lists(s.body)


def _ends(s: Compute, ending: Compute) -> bool:
    """Whether a map takes the results of a product, each where it is, a few steps further."""
    o = ending.operator
    if o.reduce != "none" or ending.domain is not None or {*o.axes} != {*s.operator.axes}:
        return False
    places = tuple(axis(a) for a in s.operator.axes)
    calls = [n.op for n in walk(ending.body) if isinstance(n, Call)]
    same = all(r.indices == places for r in reads(ending.body) if r.tensor == s.buffer)
    return same and len(calls) <= MOST and LONG.isdisjoint(calls)


def _made(names: set[str], chain: Chain, between: Sequence[Statement]) -> bool:
    """Whether these statements compute one of some tiles, or copy it."""
    for s, _ in statements(between):
        if isinstance(s, Load) and not chain.tensor(s.read.tensor).padding:
            continue
        if (s.old if isinstance(s, SaveOld) else s.buffer) in names:
            return True
    return False
