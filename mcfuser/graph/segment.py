"""Segments of a module: regions that share values, and which of them become chains.

Segments are chosen independently. Each region of a segment is priced, as one kernel, and so are its
pieces: every product with its epilogue, and every prologue. The cheapest cover is chosen
(mcfuser.graph.cover). A region that is a little dearer than what that has in its place is chosen
all the same where all of that is inside it: tuning then measures both (mcfuser.tune.cover), for the
pieces of a region are cuts of its chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from tvm import relax

from mcfuser.graph.cover import SegmentCover, Way, cheapest, joined
from mcfuser.graph.dataflow import sources
from mcfuser.graph.price import NEVER, TICK, Prices
from mcfuser.graph.prologue import REDUCES
from mcfuser.graph.regions import Region, named
from mcfuser.graph.selection import Selection
from mcfuser.graph.views import Unliftable
from mcfuser.measure.rounds import MARGIN

CLOSE = 3.0
"""A region of products is measured beside its pieces where it is predicted to take this multiple of
their time at most: what several products share a kernel for is what models know least about."""
CLOSE_ROWS = 1.02
"""The same for a region with a prologue. It saves little, and to measure it takes time: on an H200,
of the regions that were predicted to take 1.01 to 1.6 times the time of their pieces none won."""
MOST_REGIONS = 24
"""Segments of more regions are chosen by the bytes that these save: the steps of an unrolled
recurrence overlap throughout."""
MOST_PRICED = 48
"""Distinct chains that are priced; further segments are chosen by bytes."""

CLOSE_COVERS = 1.05
"""A region that is predicted to make this multiple of the cheapest cover's time at most, and that
neither is inside a chosen one nor has one inside, makes another cover that is measured too."""

Verdict = Literal[
    "chosen", "measured", "inside", "close", "dearer", "cannot win", "cannot be written"
]


@dataclass(frozen=True, slots=True)
class Considered:
    """A region that has alternatives, and what was made of it.

    `seconds` are those of its chain as one kernel, `total` those of the cheapest cover of its
    segment with it, `least` those of the cheapest one; each is None where there is none. A region
    that is "measured" was chosen although it is predicted to be slower than its pieces: it is tuned
    beside them, and so are those that are "inside" it. One that is "close" makes another cover,
    which is tuned as well. One that "cannot win" has the least that it could take as its `seconds`.
    `reason` says why it cannot, or why a region cannot be written. `key` is that of its chain where
    it was priced.
    """

    region: Region
    verdict: Verdict
    seconds: float | None
    total: float | None
    least: float | None
    reason: str | None = None
    key: str | None = None

    @property
    def chosen(self) -> bool:
        return self.verdict in ("chosen", "measured")


@dataclass(frozen=True, slots=True)
class ModelCover:
    """The regions that were chosen, and all that had alternatives."""

    regions: tuple[Region, ...]
    considered: tuple[Considered, ...]


def model_cover(
    regions: Sequence[Region], prices: Prices, preferred: AbstractSet[str] = frozenset()
) -> ModelCover:
    """The regions of a module's cheapest cover; of those with the chains in it that are
    `preferred`, given by their keys. Prologues of products whose segment is not priced are left
    apart."""
    taken, considered = list[Region](), list[Considered]()
    for segment in _segments(regions):
        if len(segment) == 1 and not segment[0].prologue:
            taken += segment
        elif len(segment) > MOST_REGIONS or len(prices.known) >= MOST_PRICED:
            taken += [r for r in segment if not r.prologue]
        else:
            found = _chosen(_Segment.of(segment, prices), preferred)
            taken += [c.region for c in found if c.chosen]
            considered += found
    return ModelCover(tuple(taken), tuple(considered))


def _segments(regions: Sequence[Region]) -> list[list[Region]]:
    """The regions, parted where no two of different parts share a value."""
    parts: list[tuple[set[relax.Var], list[Region]]] = []
    at: dict[relax.Var, int] = {}
    for region in regions:
        touched = sorted({at[v] for v in region.members if v in at})
        values, together = set(region.members), [region]
        for i in reversed(touched):
            values |= parts[i][0]
            together = parts[i][1] + together
            parts[i] = (set(), [])
        at |= dict.fromkeys(values, len(parts))
        parts.append((values, together))
    return [found for _, found in parts if found]


# --- one segment ----------------------------------------------------------------------------


@dataclass
class _Segment:
    """The values of overlapping regions in order, and the ways to compute each one.

    `fused` has the way of each region that can be written, by its number, `keys` that of its chain,
    `unable` why others cannot be, and `hopeless` why some cannot win. `wanted` are the values that
    others read.
    """

    chosen: Selection
    regions: Sequence[Region]
    numbers: dict[relax.Var, int]
    ways: list[list[Way]]
    wanted: int
    fused: dict[int, Way] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    unable: dict[int, str] = field(default_factory=dict)
    hopeless: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(regions: Sequence[Region], prices: Prices) -> _Segment:
        chosen = prices.chosen
        flow, inside = chosen.flow, {v for r in regions for v in r.members}
        order = sorted(inside, key=flow.position.__getitem__)
        numbers = {v: i for i, v in enumerate(order)}
        wanted = [
            v
            for v in order
            if v in flow.outputs
            or any(x in chosen.live and x not in inside for x in flow.readers.get(v, ()))
        ]
        segment = _Segment(chosen, regions, numbers, [], _bits(numbers, wanted))
        prologues = {r.prologue[-1]: r.prologue for r in regions if r.prologue}
        segment.ways += [[segment.alone(v, prologues.get(v), prices)] for v in order]
        after = sorted(range(len(regions)), key=lambda i: -regions[i].saved)
        for before in (False, True):  # those with a prologue are compared with those without
            left = [i for i in after if bool(regions[i].prologue) == before]
            least = {i: segment.least(regions[i]) for i in left}
            for number in left:
                segment.add(number, least, prices)
        return segment

    def way(self, members: Sequence[relax.Var], ticks: int, region: Region | None = None) -> Way:
        inside = _bits(self.numbers, members)
        read = _bits(
            self.numbers, (s for m in members for s in sources(self.chosen.flow.values[m]))
        )
        saved, repeats = (region.saved, region.prologue) if region is not None else (0, ())
        return Way(read & ~inside, inside, ticks, saved, _bits(self.numbers, repeats))

    def alone(self, v: relax.Var, rows: tuple[relax.Var, ...] | None, prices: Prices) -> Way:
        """A product or a reduction in a kernel of its own, or the prologue `rows` that ends with
        `v`. What is between these costs nothing here: it is a product's epilogue."""
        if rows is None and self.chosen.flow.kinds[v] not in ("product", *REDUCES):
            return self.way((v,), 0)
        members = rows or (v,)
        try:
            return self.way(members, prices.of(members, self.chosen.flow.name(v)))
        except Unliftable:
            return self.way(members, NEVER)

    def add(self, number: int, least: dict[int, Way], prices: Prices) -> None:
        """Adds a region to the ways in which its last value can be computed, unless it cannot win
        against those that are known: then it is not priced. `least` has the region, and others that
        may be added later, at their least prices; the region is taken from there."""
        why = self._hopeless(number, least)
        region, way = self.regions[number], least.pop(number)
        if why is not None:
            self.hopeless[number], self.fused[number] = why, way
            return
        try:
            name = named(self.chosen.flow, region)
            ticks = max(prices.of(region.members, name), way.ticks)
            self.keys[number] = prices.key(region.members, name)
        except Unliftable as refusal:
            self.unable[number] = str(refusal)
            return
        self.fused[number] = replace(way, ticks=ticks)
        if ticks < NEVER:
            self.ways[_end(way)].append(self.fused[number])

    def least(self, region: Region) -> Way:
        """A region at its least price: a kernel takes as long as its slowest product would alone,
        and longer with a prologue than without, so that rows are not computed again for nothing."""
        slowest = max(map(self._ticks, region.core))
        if not region.prologue:
            return self.way(region.members, slowest, region)
        core = next((i for i, r in enumerate(self.regions) if r.members == region.core), None)
        slowest = max(slowest, self.fused[core].ticks if core in self.fused else 0)
        return self.way(region.members, slowest + 1, region)

    def _hopeless(self, number: int, least: dict[int, Way]) -> str | None:
        """Why a region cannot win even if it and all others take their least times; None where it
        can."""
        region, way = self.regions[number], least[number]
        if region.prologue:
            rows = self._ticks(region.prologue[-1])
            if rows < (1 - MARGIN) * (rows + way.ticks):
                return f"its prologue is {rows / (rows + way.ticks):.1%} of its time"
        known = cheapest(self.ways, self.wanted)
        ways = [list(row) for row in self.ways]
        for other in least.values():
            ways[_end(other)].append(other)
        with_it = cheapest(ways, self.wanted, way)
        if known is None or (with_it is not None and with_it.ticks <= known.ticks):
            return None
        return "another cover is faster than this one can be"

    def _ticks(self, v: relax.Var) -> int:
        return self.ways[self.numbers[v]][0].ticks


def _end(way: Way) -> int:
    """The number of the last value that a way computes."""
    return way.inside.bit_length() - 1


def _bits(numbers: dict[relax.Var, int], values: Iterable[relax.Var]) -> int:
    """The set of those of the values that have a number."""
    return sum(1 << n for n in {numbers[v] for v in values if v in numbers})


def _chosen(segment: _Segment, preferred: AbstractSet[str]) -> list[Considered]:
    """What is made of each region of a segment."""
    wished = next((i for i, key in segment.keys.items() if key in preferred), None)
    forced = segment.fused[wished] if wished is not None else None
    best = cheapest(segment.ways, segment.wanted, forced)
    best = best or cheapest(segment.ways, segment.wanted)
    if best is None:
        return []
    cover = _with_close(segment, best)
    return [_considered(segment, i, best, cover) for i in range(len(segment.regions))]


def _with_close(segment: _Segment, cover: SegmentCover) -> SegmentCover:
    """The cover with regions in place of their pieces where these are not much cheaper, those that
    save most first."""
    tried = [i for i in segment.fused if i not in segment.hopeless]
    for i in sorted(tried, key=lambda i: -segment.regions[i].saved):
        way = segment.fused[i]
        if way in cover.ways or (larger := joined(cover, way, segment.wanted)) is None:
            continue
        close = CLOSE_ROWS if segment.regions[i].prologue else CLOSE
        if way.ticks <= close * (cover.ticks - larger.ticks + way.ticks):
            cover = larger
    return cover


def _considered(
    segment: _Segment, number: int, best: SegmentCover, cover: SegmentCover
) -> Considered:
    region, least = segment.regions[number], _seconds(best.ticks)
    if number in segment.unable:
        why = segment.unable[number]
        return Considered(region, "cannot be written", None, None, least, why)
    way = segment.fused[number]
    with_it = cheapest(segment.ways, segment.wanted, way)
    total = _seconds(with_it.ticks) if with_it is not None else None
    verdict: Verdict = "dearer"
    if number in segment.hopeless:
        verdict = "cannot win"
    elif way in cover.ways:
        verdict = "chosen" if way in best.ways else "measured"
    elif way in best.ways:
        verdict = "inside"
    elif (
        with_it is not None and _crosses(way, cover) and with_it.ticks <= CLOSE_COVERS * best.ticks
    ):
        verdict = "close"
    reason, key = segment.hopeless.get(number), segment.keys.get(number)
    return Considered(region, verdict, _seconds(way.ticks), total, least, reason, key)


def _crosses(way: Way, cover: SegmentCover) -> bool:
    """Whether a way shares values with ways of a cover, and neither is inside the other."""
    shared = [w for w in cover.ways if w.inside & way.inside]
    return any(w.inside & ~way.inside and way.inside & ~w.inside for w in shared)


def _seconds(ticks: int) -> float | None:
    return ticks * TICK if ticks < NEVER else None
