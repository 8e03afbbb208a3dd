"""Proves a candidate that is not measured: its schedule is interpreted on a small chain.

The small chain has the same operators. A loop of the candidate has one iteration there if it is
dead and a few if not, the last of them partial if its own is. That is enough to show a wrong
repair, a reduction that is initialised again, or a tile that is read before it is loaded: these
are wrong at any extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mcfuser.chain import Axis, Chain, largest, sources
from mcfuser.errors import ChainError
from mcfuser.measure.agreement import disagreement
from mcfuser.measure.case import Case
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import Program, program
from mcfuser.space.reference import decode, logical

ITERATIONS = 4
"""The largest number of iterations of a loop."""
TILE = 3
"""The largest tile of a loop; a dead loop has at most twice as many positions."""
UNIT = 1e-9
"""The relative error that is allowed: the interpreter computes in float64."""


def disproof(
    chain: Chain, plan: Plan, tiles: Mapping[str, int], shifts: bool, seed: int
) -> str | None:
    """Why a candidate is wrong on a small chain, in one sentence; None where it is right.

    It is checked on plain inputs, and on inputs of varied scales: with any sign, all negative, and
    all positive. A candidate is also refused where no small chain has its form.
    """
    for small, sizes in _smaller(chain, tiles):
        try:
            ready = program(small, shifts)
        except ChainError:
            continue
        small_plan = replace(plan, program=ready, parts=min(plan.parts, ITERATIONS))
        if _form(ready) == _form(plan.program) and small_plan.notation == plan.notation:
            return _wrong(small, small_plan, sizes, seed)
    return "no small chain is fused as it is, so its schedule is not proven"


def _form(ready: Program) -> object:
    """The part of a program that decides where statements are placed."""
    operators = tuple((o.out, o.related, o.reduce, o.over) for o in ready.chain.operators)
    return operators, tuple(sorted(ready.repairs)), ready.unmasked


def _wrong(small: Chain, plan: Plan, tiles: Mapping[str, int], seed: int) -> str | None:
    """Why a plan is wrong for a small chain, None where its outputs agree with the reference."""
    schedule = plan.schedule(tiles)
    for varied, sign in ((False, None), (True, None), (True, -1), (True, 1)):
        case = Case(small, seed, {}, UNIT, varied, sign)
        stored = {n: logical(small, n, a) for n, a in case.made.data.items()}
        inputs = {n: decode(a, small.tensor(n).dtype) for n, a in stored.items()}
        results, _ = interpret(schedule, inputs)
        for name in small.outputs:
            expected, allowed = case.made.expected[name], case.made.allowed[name]
            error = disagreement(results[name], expected, allowed, UNIT, False)
            if isinstance(error, str):
                return f"its schedule is wrong where it was interpreted: '{name}', {error}"
    return None


def _smaller(chain: Chain, tiles: Mapping[str, int]) -> Iterator[tuple[Chain, dict[str, int]]]:
    """Small chains with tile sizes, the smallest first.

    In the second one only axes that no operator reduces are small: a chain that divides by the
    extent of a reduction has another form where that extent is smaller.
    """
    reduced = {a for o in chain.operators for a in o.over}
    every = {a.name for a in chain.axes}
    for those in (every, every - reduced):
        extents, sizes = dict[str, int](), dict[str, int]()
        for a in chain.axes:
            n = largest(a.extent)
            tile = tiles.get(a.name, 1)
            extents[a.name], sizes[a.name] = _shrunk(n, tile) if a.name in those else (n, tile)
        yield _resized(chain, extents), {a: sizes[a] for a in tiles}


def _shrunk(extent: int, tile: int) -> tuple[int, int]:
    """A small extent and a small tile that divide each other as these do: dead, whole or
    partial."""
    if tile >= extent:
        n = min(extent, 2 * TILE)
        return n, n
    t, iterations = min(tile, TILE), min(-(-extent // tile), ITERATIONS)
    return t * iterations - (extent % tile != 0 and t > 1), t


def _resized(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain with other extents and dense tensors.

    A dimension that is given as a number has as many positions as are read.
    """
    axes = tuple(Axis(a.name, extents[a.name]) for a in chain.axes)
    reach: dict[tuple[str, int], int] = {}
    for o in chain.operators:
        for r in sources(o):
            for i, index in enumerate(r.indices):
                last = sum(max(0, c) * (extents[a] - 1) for a, c in index.terms)
                offset = index.offset
                if offset < 0 or any(c < 0 for _, c in index.terms):
                    last, offset = chain.shape(r.tensor)[i] - 1, 0
                key = r.tensor, i
                reach[key] = max(reach.get(key, 0), last + offset + 1)
    tensors = []
    for t in chain.tensors:
        dimensions = enumerate(t.shape)
        shape = tuple(d if isinstance(d, str) else reach.get((t.name, i), d) for i, d in dimensions)
        tensors.append(replace(t, shape=shape, strides=None, offset=0, padding=()))
    return replace(chain, axes=axes, tensors=tuple(tensors))
