"""Schedules drawn at random, of chains with plain, bounded, split and run-time loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import rolls
from mcfuser.chain import Bounds, Chain, fixed, from_json
from mcfuser.codegen.tensorir import TensorirSource
from mcfuser.space.expression import Expression, bind, loop_axes, tilings
from mcfuser.space.place import place
from mcfuser.space.program import Program
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.schedules import LINES, build, random_inputs, schedules
from tests.support.tensorir_agree import call, compiled, error

EXTENTS = (1, 7, 16, 33, 48, 64, 77)
KINDS = ("plain", "split", "bounded", "run time", "all")
DRAWN = 4
"""Random schedules of a seed, one of each kind; `--cases 2000` draws more, over all seeds."""
BOUNDED = {
    "attention": [
        "S[b, m, n] = sum[k] A[b, m, k] * B[b, n, k]",
        "R[b, m] = max[n] S[b, m, n]",
        "P[b, m, n] = exp(S[b, m, n] - R[b, m])",
        "Z[b, m] = sum[n] P[b, m, n]",
        "U[b, m, h] = sum[n] P[b, m, n] * D[b, n, h]",
        "O[b, m, h] = U[b, m, h] / Z[b, m]",
    ],
    "product": ["U[b, m, h] = sum[n] E[b, m, n] * D[b, n, h]"],
    "normaliser": [
        "R[b, m] = max[n] E[b, m, n]",
        "Z[b, m] = sum[n] exp(E[b, m, n] - R[b, m])",
        "L[b, m] = R[b, m] + log(Z[b, m])",
    ],
}
CAUSAL, WINDOW = " where n <= m", " where n <= m and m <= n + 30"
"""Wide enough for every row of `draw` to have a position."""


def bounded(name: str, extents: Mapping[str, int], domain: str) -> Chain:
    """A chain whose reductions over n have a domain."""
    lines = [x + domain * ("[n]" in x) for x in BOUNDED[name]]
    shapes = {"A": "bmk", "B": "bnk", "D": "bnh", "E": "bmn"}
    used = {t: list(s) for t, s in shapes.items() if any(f"{t}[" in x for x in lines)}
    axes = {a: n for a, n in extents.items() if any(a in s for s in used.values())}
    tensors = {t: {"shape": shape} for t, shape in used.items()}
    return from_json({"axes": axes, "tensors": tensors, "operators": lines})


def parted(
    chain: Chain, expression: Expression, tiles: Mapping[str, int], split: str, parts: int
) -> Schedule:
    chain = hoist(chain)
    dead = {a for a in loop_axes(chain) if tiles[a] >= chain.size(a)}
    kept = tuple((a, min(tiles[a], chain.size(a))) for a in loop_axes(chain))
    buffers, body = place(Program(chain, rolls(chain)), expression, dead, split=split)
    return Schedule(chain, expression, kept, buffers, body, parts)


def at_run_time(chain: Chain, bounds: Mapping[str, Bounds]) -> Chain:
    axes = tuple(replace(a, extent=bounds.get(a.name, a.extent)) for a in chain.axes)
    return replace(chain, axes=axes)


def draw(rng: random.Random, kind: str) -> tuple[Schedule, Chain]:
    """A schedule of this kind and the chain that it computes; raises Illegal if there is none."""
    wants = {kind} if kind != "all" else set(KINDS)
    extents = {a: rng.choice(EXTENTS) for a in "mnkh"} | {"b": rng.choice((1, 3))}
    tiles = {a: rng.choice((16, 32, 48, 64, 128)) for a in "bmnkh"}
    if "bounded" in wants:
        extents |= {a: rng.choice((64, 77)) for a in "mn"}
        tiles |= {"n": rng.choice((16, 32))}
        domain = rng.choice((CAUSAL, WINDOW))
        chain = bounded(rng.choice(sorted(BOUNDED)), extents, domain)
    else:
        chain = build(rng.choice(sorted(LINES)), extents)
    if rng.random() < 0.4:
        weights = [replace(t, constant=t.name in tuple("BDefg")) for t in chain.tensors]
        chain = replace(chain, tensors=tuple(weights))
    if "run time" in wants:
        names = rng.sample([a.name for a in chain.axes], rng.randint(1, 2))
        least = 49 if "bounded" in wants else 1
        low = {a: rng.randint(min(least, chain.size(a)), chain.size(a)) for a in names}
        chain = at_run_time(chain, {a: Bounds(low[a], chain.size(a)) for a in names})
    every = tilings(chain)
    expression = rng.choice(every) if rng.random() < 0.2 else bind(chain, rng.choice(every))
    if "split" not in wants:
        return schedules(chain, expression, tiles), chain
    axis = rng.choice([a for o in chain.operators for a in o.over])
    if axis in expression.grid or tiles[axis] >= chain.size(axis):
        raise Illegal("nothing to split")
    return parted(chain, expression, tiles, axis, rng.choice((2, 3, 5))), chain


def values(rng: random.Random, chain: Chain) -> list[dict[str, int]]:
    """Both ends of the bounds, and something between; one empty choice where all is known."""
    bounds = {a.name: a.extent for a in chain.axes if isinstance(a.extent, Bounds)}
    between = {a: rng.randint(b.low, b.high) for a, b in bounds.items()}
    ends = [{a: b.low for a, b in bounds.items()}, {a: b.high for a, b in bounds.items()}]
    return [*ends, between] if bounds else [{}]


@dataclass(frozen=True)
class Drawn:
    """A schedule that was drawn, the chain that it computes, and its source."""

    kind: str
    schedule: Schedule
    chain: Chain
    source: TensorirSource


def drawn(
    rng: random.Random, count: int, make: Callable[[str, Schedule], TensorirSource | None]
) -> list[Drawn]:
    """So many schedules, a fifth of each kind. `make` gives a source for one of a kind, or None or
    Illegal where another is to be drawn."""
    found: list[Drawn] = []
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        try:
            schedule, chain = draw(rng, kind)
            source = make(kind, schedule)
        except Illegal:
            continue
        if source is not None:
            found.append(Drawn(kind, schedule, chain, source))
    return found


def errors(rng: random.Random, some: Sequence[Drawn], seed: int) -> Iterator[tuple[float, object]]:
    """The error of each schedule's kernel at each of its extents, and which it is."""
    functions = compiled([d.source.text for d in some])
    for d, function in zip(some, functions, strict=True):
        for extents in values(rng, d.chain):
            plain = fixed(d.chain, extents)
            inputs = {n: a.astype("float32") for n, a in random_inputs(plain, seed).items()}
            result = call(d.source, function, d.chain, inputs, extents)
            which = (d.kind, extents, d.schedule.parts, str(d.chain), str(d.schedule))
            yield error(result, evaluate(plain, inputs)), which
