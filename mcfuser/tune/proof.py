"""A candidate that nobody measures, proven on a small chain: its schedule is interpreted there.

The small chain has the same operators, and its axes have as many turns as they need to show what
goes wrong: one where the candidate's loop is dead, a few otherwise, the last one ragged if its own
is. A wrong repair, a reduction that starts anew, a tile that is read before it is loaded are wrong
at any extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mcfuser.chain import Axis, Chain, largest, sources
from mcfuser.errors import ChainError
from mcfuser.measure.agreement import disagreement
from mcfuser.measure.case import Case, decode
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import Program, program
from mcfuser.space.reference import logical

TURNS = 4
"""The most turns of a loop."""
TILE = 3
"""The most positions of a turn, and twice that of a loop that is dead."""
UNIT = 1e-9
"""The relative error allowed: the interpreter computes in float64."""


def disproof(
    chain: Chain, plan: Plan, tiles: Mapping[str, int], shifts: bool, seed: int
) -> str | None:
    """Why a candidate for a chain is wrong on a small one, in words; None where it is right there,
    on plain inputs and on varied ones, of any signs, all negative and all positive."""
    for small, sizes in _smaller(chain, tiles):
        try:
            ready = program(small, shifts)
        except ChainError:
            continue
        other = replace(plan, program=ready, parts=min(plan.parts, TURNS))
        if _form(ready) == _form(plan.program) and other.notation == plan.notation:
            return _wrong(small, other, sizes, seed)
    return "no small chain is fused as it is, so its schedule is not proven"


def _form(ready: Program) -> object:
    """What of a program decides where statements are placed."""
    operators = tuple((o.out, o.related, o.reduce, o.over) for o in ready.chain.operators)
    return operators, tuple(sorted(ready.repairs)), ready.unmasked


def _wrong(small: Chain, plan: Plan, tiles: Mapping[str, int], seed: int) -> str | None:
    schedule = plan.schedule(tiles)
    for varied, sign in ((False, None), (True, None), (True, -1), (True, 1)):
        case = Case(small, seed, {}, UNIT, varied, sign)
        stored = {n: logical(small, n, a) for n, a in case.made.data.items()}
        inputs = {n: decode(a, small.tensor(n).dtype) for n, a in stored.items()}
        found, _ = interpret(schedule, inputs)
        for name in small.outputs:
            expected, allowed = case.made.expected[name], case.made.allowed[name]
            error = disagreement(found[name], expected, allowed, UNIT, False)
            if isinstance(error, str):
                return f"its schedule is wrong where it was interpreted: '{name}', {error}"
    return None


def _smaller(chain: Chain, tiles: Mapping[str, int]) -> Iterator[tuple[Chain, dict[str, int]]]:
    """Small chains, the smallest first, with tile sizes: a chain that divides by the number of its
    positions is another one where there are fewer of them."""
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
    """An extent and a tile like these, but small."""
    if tile >= extent:
        n = min(extent, 2 * TILE)
        return n, n
    t, turns = min(tile, TILE), min(-(-extent // tile), TURNS)
    return t * turns - (extent % tile != 0 and t > 1), t


def _resized(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain at other extents, dense; dimensions that no axis names are as long as is read."""
    axes = tuple(Axis(a.name, extents[a.name]) for a in chain.axes)
    reach: dict[tuple[str, int], int] = {}
    for o in chain.operators:
        for r in sources(o):
            for i, index in enumerate(r.indices):
                last = sum(max(0, c) * (extents[a] - 1) for a, c in index.terms)
                least = sum(min(0, c) * (extents[a] - 1) for a, c in index.terms)
                offset = index.offset
                if least + offset < 0 or any(c < 0 for _, c in index.terms):
                    last, offset = chain.shape(r.tensor)[i] - 1, 0
                key = r.tensor, i
                reach[key] = max(reach.get(key, 0), last + offset + 1)
    tensors = tuple(
        replace(
            t,
            shape=tuple(
                d if isinstance(d, str) else reach.get((t.name, i), d)
                for i, d in enumerate(t.shape)
            ),
            strides=None,
            offset=0,
        )
        for t in chain.tensors
    )
    return replace(chain, axes=axes, tensors=tensors)
