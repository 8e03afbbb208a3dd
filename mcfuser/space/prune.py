"""The space of a chain and the rules that prune it (MCFuser section III-C).

A space is expressions times tile sizes. Rules 1 and 2 drop expressions, rule 3 tile sizes, rule 4
single candidates; each is one function from space to space, and `RULES` is their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, Operator, digits, sources, strides_of
from mcfuser.device import Device
from mcfuser.expr import Affine, reads
from mcfuser.space.expression import Expression, bind, bindable, deep, interchangeable, tilings
from mcfuser.space.nesting import Nesting
from mcfuser.space.plan import Ints, Plan, blocks, footprint, splits
from mcfuser.space.program import Program, program
from mcfuser.space.tiles import GRANULE, line_tiles, single, small_tiles, tile_sizes

PADDING = 0.05
"""Rule 3's limit on the share of padding, where the extent is not a power of two."""
MOST = 1 << 18
"""Candidates that rule 4 leaves: all of them are listed and priced with every value of the knobs,
and beside one that is left out lies another of nearly its size."""
MANY_ROWS = 3
"""Rows that are computed alike, of which not all sets of dead loops are looked at: of a window's
two dimensions and a picture's windows, there are sixteen."""
SLACK = 1.2
"""Rule 4 allows this much over the limit, for errors of the estimate (section III-C)."""

SpaceKind = Literal["mcfuser", "chimera"]


@dataclass(frozen=True)
class Space:
    """Expressions, and the tile sizes of each loop axis (`options`).

    After rule 4, `tables` pairs each plan with the tile sizes [candidates, axes] that are left for
    it. Where not `dead_loops`, a loop of one trip is kept (the ablation of the paper).
    """

    program: Program
    expressions: tuple[Expression, ...]
    options: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[Plan, Ints], ...] | None = None
    dead_loops: bool = True

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return self.program.axes

    def dead(self, tiles: Mapping[str, int]) -> frozenset[str]:
        """The loops that are dropped under these tile sizes."""
        gone = self.dropped(np.asarray([[tiles[a] for a in self.axes]]))[0]
        return frozenset(a for a, dead in zip(self.axes, gone, strict=True) if dead)

    def dropped(self, tiles: Ints) -> NDArray[np.bool_]:
        """The same for many tiles at once, both [candidates, axes]."""
        extents = np.asarray([self.program.chain.size(a) for a in self.axes], np.int64)
        if not self.dead_loops:
            return np.broadcast_to(extents == 1, tiles.shape)
        return tiles >= extents

    @property
    def candidates(self) -> int:
        """Counted, not enumerated."""
        if self.tables is not None:
            return sum(len(tiles) for _, tiles in self.tables)
        return len(self.expressions) * math.prod(len(o) for o in self.options)


def space(
    chain: Chain,
    kind: SpaceKind = "mcfuser",
    shifts: bool = True,
    lines: bool = False,
    walks: bool | None = None,
) -> Space:
    """Every candidate of a chain. `chimera` is the paper's ablation: deep tilings only, and no
    loop of one trip is dropped. With `lines`, tiles may be pairs of a picture's lines, too. Windows
    of no matrix product are walked position by position where kernels `walks`, tile by tile where
    they do not, and either way where it is None."""
    ready = program(chain, shifts)
    expressions = deep(ready.chain) if kind == "chimera" else tilings(ready.chain)
    rewritten, options = ready.chain, []
    windows = ready.windows if walks is not None else ()
    for a in ready.axes:
        more = line_tiles(rewritten, a) if lines else ()
        sizes = tile_sizes(rewritten.size(a), small_tiles(rewritten, a))
        every = (n for n in {*sizes, *more} if a not in windows or (n == 1) == walks)
        options.append((1,) if single(rewritten, a) else tuple(sorted(every)))
    return Space(ready, expressions, tuple(options), dead_loops=kind == "mcfuser")


def sample(drawn_from: Space, count: int, seed: int = 0) -> tuple[tuple[Plan, Ints], ...]:
    """`count` candidates at random, each as likely as any other, without a list of them all: plans,
    and the tile sizes [drawn, axes] that were drawn under them."""
    rng = np.random.default_rng(seed)
    drawn: dict[Plan, list[Ints]] = {}
    if drawn_from.tables is not None:
        ends = np.cumsum([len(tiles) for _, tiles in drawn_from.tables])
        for i in rng.integers(ends[-1], size=count):
            table = int(np.searchsorted(ends, i, side="right"))
            plan, tiles = drawn_from.tables[table]
            drawn.setdefault(plan, []).append(tiles[i - ends[table]])
    else:
        columns = [rng.choice(np.asarray(o, np.int64), count) for o in drawn_from.options]
        rows: Ints = np.stack(columns, axis=1)
        for i, row in zip(rng.integers(len(drawn_from.expressions), size=count), rows, strict=True):
            dead = drawn_from.dead(dict(zip(drawn_from.axes, row.tolist(), strict=True)))
            plan = Plan(drawn_from.program, drawn_from.expressions[i], dead)
            drawn.setdefault(plan, []).append(row)
    return tuple((plan, np.stack(rows)) for plan, rows in drawn.items())


def deduplicate(whole: Space, device: Device) -> Space:
    """Rule 1: candidates with the same sub-expression under the same grid are one."""
    bound = (bind(whole.program.chain, e) for e in whole.expressions)
    return replace(whole, expressions=tuple(dict.fromkeys(bound)))


def intermediates(whole: Space, device: Device) -> Space:
    """Rule 2: drops expressions in which an intermediate keeps several partial tiles, as it must
    where a loop over a reduced axis encloses a loop over one of its own axes (MCFuser Fig. 6b)."""
    feeding = [o for o in whole.program.chain.operators if _feeds_reduction(whole.program.chain, o)]
    kept = tuple(e for e in whole.expressions if not any(_partial_tiles(e, o) for o in feeding))
    return replace(whole, expressions=kept or whole.expressions)


def _feeds_reduction(chain: Chain, o: Operator) -> bool:
    """A later reduction needs it, so it is an intermediate and not what is stored."""
    below = {o.out}
    for other in chain.operators:
        if {r.tensor for r in reads(other.body)} & below:
            if other.reduce != "none":
                return True
            below.add(other.out)
    return False


def _partial_tiles(e: Expression, o: Operator) -> bool:
    path = [a for a in e.path(o.related) if a not in e.grid]
    first = next((i for i, a in enumerate(path) if a in o.over), len(path))
    return any(a in o.axes for a in path[first:])


def padding(whole: Space, device: Device) -> Space:
    """Rule 3: no padding along a power of two, at most 5 % along other extents; of a tile that is a
    power of two, as much as the extent itself has as one tile.

    Where no size is that good (never with the extent itself among them), the least padding stays.
    """
    options = []
    for a, sizes in zip(whole.axes, whole.options, strict=True):
        extent = whole.program.chain.size(a)
        limit = max(0.0 if _whole(extent) else PADDING, min(_waste(extent, t) for t in sizes))
        alone = _waste(extent, 1 << (extent - 1).bit_length())
        options.append(tuple(
            t for t in sizes
            if _waste(extent, t) <= (max(limit, alone) if _whole(t) and t >= GRANULE else limit)
        ))  # fmt: skip
    return replace(whole, options=tuple(options))


def _waste(extent: int, tile: int) -> float:
    """The padding of an axis as a share of it."""
    return -(-extent // tile) * tile / extent - 1.0


def _whole(size: int) -> bool:
    """A power of two, which tile compilers do not pad any further."""
    return size & (size - 1) == 0


def fast_memory(whole: Space, device: Device) -> Space:
    """Rule 4: the tiles of a block fit its fast memory, by equation (1), with 20 % of slack.

    Where none do, those that need least stay. Of more than MOST, the axes with the most sizes have
    fewer.
    """
    known: dict[tuple[Nesting, frozenset[str]], Ints] = {}
    every = [(plan, tiles, _footprint(plan, tiles, known)) for plan, tiles in _plans(whole)]
    limit = max(SLACK * device.fast, min(float(needs.min()) for _, _, needs in every))
    tables = [(plan, tiles[needs <= limit]) for plan, tiles, needs in every]
    return _thinned(whole, [(p, t) for p, t in tables if len(t)])


def _footprint(plan: Plan, tiles: Ints, known: dict[tuple[Nesting, frozenset[str]], Ints]) -> Ints:
    """The same as `footprint`, once for equal plans of equal tiles: a chain of eight loops has
    fifteen plans for each that differs."""
    key = plan.nesting, plan.dead
    if key not in known:
        known[key] = footprint(plan, tiles)
    return known[key]


def _thinned(whole: Space, tables: list[tuple[Plan, Ints]]) -> Space:
    """The space with these tables, in which the axis with the most sizes loses every other one that
    is neither a power of two nor the last, the extent, until MOST candidates or no such sizes are
    left."""
    options = list(whole.options)
    while sum(len(tiles) for _, tiles in tables) > MOST:
        longest = max(range(len(options)), key=lambda i: len(options[i]))
        sizes = options[longest]
        kept = tuple(t for i, t in enumerate(sizes) if i % 2 == 0 or _whole(t) or t == sizes[-1])
        if kept == sizes:
            break
        options[longest] = kept
        tables = [(plan, t[np.isin(t[:, longest], kept)]) for plan, t in tables]
    return replace(whole, options=tuple(options), tables=tuple((p, t) for p, t in tables if len(t)))


def distinct(whole: Space) -> Space:
    """The space with plans of equal statements merged: `mh.nk` and `mh.kn` are one where k is
    dead. Candidates are equal when their statements and tiles are."""
    nested: dict[Nesting, tuple[Plan, Ints]] = {}
    for plan, tiles in whole.tables or ():
        nested.setdefault(plan.nesting, (plan, tiles))
    merged: dict[object, tuple[Plan, Ints]] = {}
    for plan, tiles in nested.values():
        merged.setdefault(plan.drawn, (plan, tiles))
    return replace(whole, tables=tuple(merged.values()))


def parted(whole: Space, device: Device) -> Space:
    """The space, with every candidate that has fewer blocks than the device has units added again,
    split into 2, 4, 8 .. parts, as long as each part has an iteration and the blocks fill the
    device at most twice."""
    tables = []
    for plan, tiles in whole.tables or ():
        tables.append((plan, tiles))
        few = tiles[blocks(plan, tiles) < device.units]
        for axis in splits(plan) if len(few) and whole.dead_loops else ():
            tables += _parted(plan, few, axis, device)
    return replace(whole, tables=tuple(tables))


def _parted(plan: Plan, tiles: Ints, axis: str, device: Device) -> Iterator[tuple[Plan, Ints]]:
    trips = -(-plan.program.chain.size(axis) // tiles[:, plan.axes.index(axis)])
    alone, parts = blocks(plan, tiles), 2
    while parts <= device.units:
        even = -(-trips // -(-trips // parts)) == parts  # no part is left without an iteration
        kept = tiles[even & (alone * parts <= 2 * device.units)]
        if len(kept):
            yield replace(plan, split=axis, parts=parts), kept
        parts *= 2


def _plans(whole: Space) -> Iterator[tuple[Plan, Ints]]:
    """Every expression with every set of loops that some tile size leaves with one trip."""
    extents = [whole.program.chain.size(a) for a in whole.axes]
    grids = np.meshgrid(*[np.asarray(o, np.int64) for o in whole.options], indexing="ij")
    tiles = np.stack([g.ravel() for g in grids], axis=1) if grids else np.zeros((1, 0), int)
    alive = tiles < np.asarray(extents, np.int64)
    if not whole.dead_loops:
        alive = np.broadcast_to(np.asarray(extents) > 1, tiles.shape)
    compact = _compact(whole, tiles)
    tiles, alive = tiles[compact], alive[compact]
    code = alive @ (1 << np.arange(len(extents)))
    each = {
        frozenset(a for i, a in enumerate(whole.axes) if not value >> i & 1): tiles[code == value]
        for value in np.unique(code)
    }
    for expression in whole.expressions:
        for dead, kept in each.items():
            yield Plan(whole.program, expression, dead), kept


def _compact(whole: Space, tiles: Ints) -> NDArray[np.bool_]:
    """Which tiles [candidates, axes] lie together in memory along rows that are computed alike.

    Of MANY_ROWS such axes or more, a tile has several positions along one only where it has all of
    those further inside, in the order in which a tensor outside of the chain has them.
    """
    chain, kept = whole.program.chain, np.ones(len(tiles), bool)
    for row in interchangeable(chain) if whole.dead_loops else ():
        if len(row) < MANY_ROWS or not bindable(chain).issuperset(row):
            continue
        inside = [_nested(whole, tiles, order) for order in _layouts(chain, row)]
        if inside:
            kept &= np.logical_or.reduce(inside)
    return kept


def _nested(whole: Space, tiles: Ints, order: Sequence[str]) -> NDArray[np.bool_]:
    """Which tiles have several positions along one of these axes only where they have all of those
    after it."""
    kept, whole_inside = np.ones(len(tiles), bool), np.ones(len(tiles), bool)
    for a in reversed(order):
        along = tiles[:, whole.axes.index(a)]
        kept &= whole_inside | (along == 1)
        whole_inside &= along >= whole.program.chain.size(a)
    return kept


def _layouts(chain: Chain, row: Sequence[str]) -> set[tuple[str, ...]]:
    """The orders that these axes have in inputs and outputs with all of them, outermost first; none
    where one of them is part of a longer index."""
    places = [(r.tensor, r.indices) for o in chain.operators for r in sources(o)]
    places += [(o.out, tuple(Affine(((a, 1),)) for a in o.axes)) for o in chain.operators]
    found = set()
    for tensor, indices in places:
        if any(i.plain is None and set(row) & set(i.axes) for i in indices):
            return set()
        at = {i.plain: k for k, i in enumerate(indices)}
        if tensor in (*chain.inputs, *chain.outputs) and at.keys() >= set(row):
            strides, shape = strides_of(chain, tensor), chain.shape(tensor)
            far = {a: max(d.stride for d in digits(strides[at[a]], shape[at[a]])) for a in row}
            found.add(tuple(sorted(row, key=lambda a: -far[a])))
    return found


Rule = Callable[[Space, Device], Space]
RULES: tuple[tuple[str, Rule], ...] = (
    ("rule1", deduplicate),
    ("rule2", intermediates),
    ("rule3", padding),
    ("rule4", fast_memory),
)


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What is left after a rule."""

    rule: str
    expressions: tuple[str, ...]
    candidates: int


def prune(left: Space, device: Device) -> tuple[Space, tuple[PruneStep, ...]]:
    """The space after all rules, and what each one left."""
    steps = []
    for name, rule in RULES:
        left = rule(left, device)
        steps.append(PruneStep(name, _texts(left), left.candidates))
    return left, tuple(steps)


def _texts(left: Space) -> tuple[str, ...]:
    expressions: Sequence[Expression] = left.expressions
    if left.tables is not None:
        expressions = tuple(dict.fromkeys(plan.expression for plan, _ in left.tables))
    return tuple(str(e) for e in expressions)
