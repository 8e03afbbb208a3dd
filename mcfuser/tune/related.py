"""Chains of the same structure: what was best for one is tried first for another.

Two chains have the same structure where their reductions are the same but for numbers: extents,
strides, constants. What maps compute before, between and after them does not count, as a bias, a
residual or an activation: the best schedule of one is often close to that of the other. Chains of
maps alone have it where all of their operators are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from mcfuser.chain import Chain, canonical, largest, renamed, sources
from mcfuser.errors import InputError
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.expression import parse, rename
from mcfuser.space.plan import Floats
from mcfuser.tune.tried import Tried

NEAREST = 4
"""Related chains whose best are tried, the nearest in extents first."""
BEST = 2
"""Candidates of each of them at most."""
OTHER_KNOBS = 1.0
"""What other knobs count for, where a tile that is twice as large counts 1: they may be another
algorithm, as Winograd's is."""
TRUSTED = 1.2
"""By how much the model's times may err against what was measured for a related chain. What it
expects to take longer by more was slower in three of four cases (docs/cache.md)."""
_NUMBER = re.compile(r"(?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Relative:
    """A chain, and the candidates that were measured to be its best, the fastest first."""

    chain: Chain
    best: tuple[Tried, ...]


def structure(chain: Chain) -> str:
    """A text that is equal for chains of the same structure."""
    reductions = [o for o in chain.operators if o.reduce != "none"]
    if not reductions:
        return _NUMBER.sub("#", canonical(chain))
    used = [name for o in reductions for name in (*(r.tensor for r in sources(o)), o.out)]
    names = {name: f"t{i}" for i, name in enumerate(dict.fromkeys(used))}
    letters = {a.name: f"a{i}" for i, a in enumerate(chain.axes)}
    lines = [" ".join(letters.values())]
    for name in names:
        t = chain.tensor(name)
        lines.append(f"{t.dtype} {t.constant} {t.strides} {bool(t.padding)}")
    lines += [str(renamed(o, names, letters)) for o in reductions]
    return _NUMBER.sub("#", "\n".join(lines))


def distance(one: Chain, other: Chain) -> float:
    """How far the extents of two chains of one structure are apart, in doublings."""
    axes = zip(one.axes, other.axes, strict=True)
    return sum(abs(math.log2(largest(a.extent) / largest(b.extent))) for a, b in axes)


def nearest(chain: Chain, others: Iterable[Chain]) -> list[Chain]:
    """The NEAREST of other chains that have the structure of a chain, the nearest first; of those
    as near, the ones with as many operators."""
    wanted = structure(chain)
    same = [o for o in others if o.key != chain.key and structure(o) == wanted]
    distinct = {o.key: o for o in same}

    def apart(other: Chain) -> tuple[float, int]:
        return distance(chain, other), abs(len(chain.operators) - len(other.operators))

    return sorted(distinct.values(), key=apart)[:NEAREST]


def fastest(tried: Iterable[Tried]) -> tuple[Tried, ...]:
    """The BEST of candidates that were measured."""
    timed = [(t.seconds, i, t) for i, t in enumerate(tried) if t.seconds is not None]
    return tuple(t for _, _, t in sorted(timed, key=lambda each: each[:2])[:BEST])


def carried(
    chain: Chain,
    every: Candidates,
    shifts: bool,
    relatives: Sequence[Relative],
    most: int,
    tiled: Callable[[Chain], Chain],
) -> list[Candidate]:
    """At most so many of a chain's candidates that are nearest to the best of its relatives: the
    best of each first. `tiled` gives a chain as the back end tiles it (Backend.tiled)."""
    found: dict[Candidate, None] = {}
    for rank in range(BEST):
        for relative in relatives:
            if rank < len(relative.best) and relative.best[rank].shifts == shifts:
                near = _nearest(chain, every, relative.chain, relative.best[rank], tiled)
                if near is not None and len(found) < most:
                    found.setdefault(near)
    return list(found)


def plausible(every: Candidates, times: Floats, carried: Sequence[Candidate]) -> list[int]:
    """The rows of those carried candidates that are expected to take at most TRUSTED times as long
    as the best of all, given the times that the model expects of every one."""
    rows = [int(np.flatnonzero((every.rows == c).all(axis=1))[0]) for c in carried]
    return [row for row in rows if times[row] <= TRUSTED * times.min()]


def _nearest(
    chain: Chain,
    every: Candidates,
    other: Chain,
    best: Tried,
    tiled: Callable[[Chain], Chain],
) -> Candidate | None:
    """The candidate of a chain with the expression and the split of another chain's whose tiles are
    nearest; a tile that is a whole axis stays one. None where there is no such expression."""
    names = {f"a{i}": a.name for i, a in enumerate(chain.axes)}
    try:
        expression = str(rename(parse(best.expression), names))
        split = names[best.split] if best.split is not None else None
        tiles = _scaled(chain, other, best, tiled)
        wanted = np.asarray([tiles[axis] for axis in every.space.axes], np.float64)
    except (KeyError, InputError):
        return None
    families = {
        at for (at, _), plan in every.plans.items()
        if str(plan.expression) == expression and plan.split == split
        and (split is None or plan.parts == best.parts)
    }  # fmt: skip
    rows = np.flatnonzero(np.isin(every.rows[:, 0], sorted(families)))
    if not len(rows):
        return None
    knobs = tuple(best.knobs.items())
    same = np.asarray([tuple(asdict(s).items()) == knobs for s in every.table.settings])
    apart = np.abs(np.log2(every.rows[rows, 1:-1] / wanted)).sum(axis=1)
    apart += OTHER_KNOBS * ~same[every.rows[rows, -1]]
    return every.candidate(rows[int(np.argmin(apart))])


def _scaled(
    chain: Chain, other: Chain, best: Tried, tiled: Callable[[Chain], Chain]
) -> dict[str, int]:
    """The tiles of another chain's candidate by the names of this one's axes. Raises KeyError where
    the two are tiled along different axes."""
    own, others, tiles = tiled(chain), tiled(other), dict[str, int]()
    for at, (mine, theirs) in enumerate(zip(chain.axes, other.axes, strict=True)):
        size = best.tiles.get(f"a{at}")
        if size is not None:
            whole, extent = others.size(theirs.name), own.size(mine.name)
            tiles[mine.name] = extent if size >= whole else min(size, extent)
    return tiles
