"""The cheapest cover of a segment: ways to compute its values that compute all that is wanted once.

Values are numbered in the order in which they are computed, and a set of them is the bits of an
integer. A dynamic program goes from the last value to the first. Its state is the set of values
that are still to be computed, and each of these is computed in one of its ways, which adds what
that way reads. Where the flow of values narrows, states become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STATES = 256
"""States that are kept of a segment after each value, the cheapest ones."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a value.

    `needs` are the values that it reads and `inside` those that it computes, `ticks` its price, and
    `saved` the bytes that it saves. `repeats` are those of the values inside that others may
    compute again.
    """

    needs: int
    inside: int
    ticks: int
    saved: int = 0
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class SegmentCover:
    """Ways that compute all that is wanted, in order, and the sum of their prices."""

    ways: tuple[Way, ...]
    ticks: int


@dataclass(frozen=True, slots=True)
class _State:
    """What was spent and saved so far, the way that was chosen last, and the state before it."""

    ticks: int = 0
    saved: int = 0
    way: Way | None = None
    before: _State | None = None

    @property
    def cost(self) -> tuple[int, int]:
        return self.ticks, -self.saved

    def then(self, way: Way) -> _State:
        return _State(self.ticks + way.ticks, self.saved + way.saved, way, self)


def cheapest(
    ways: Sequence[Sequence[Way]], wanted: int, forced: Way | None = None
) -> SegmentCover | None:
    """The cheapest cover, given the ways in which each value can be computed; of equally cheap ones
    that which saves most bytes. None where there is no cover.

    Where a way is `forced`, it is in the cover, and no other way computes what it does, but for
    what may be computed again.
    """
    if forced is not None:
        ways = [[w for w in row if _agree(w, forced)] for row in ways]
        end = forced.inside.bit_length() - 1
        ways[end] = [forced]
    states: Mapping[int, _State] = {wanted: _State()}
    for at in reversed(range(len(ways))):
        states = _before(states, at, ways[at])
    state = states.get(0)
    if state is None:
        return None
    ticks, found = state.ticks, list[Way]()
    while state is not None and state.way is not None:
        found.append(state.way)
        state = state.before
    if forced is not None and forced not in found:
        return None
    return SegmentCover(tuple(found), ticks)


def _agree(way: Way, forced: Way) -> bool:
    return way is forced or not way.inside & forced.inside & ~forced.repeats


def _before(states: Mapping[int, _State], at: int, ways: Sequence[Way]) -> Mapping[int, _State]:
    """The states before a value is computed, the cheapest one for each set of wanted values."""
    bit, before = 1 << at, dict[int, _State]()
    for wanted, state in states.items():
        if not wanted & bit:
            _keep(before, wanted, state)
            continue
        for way in ways:
            _keep(before, (wanted | way.needs) & ~bit, state.then(way))
    if len(before) <= STATES:
        return before
    return dict(sorted(before.items(), key=lambda s: (s[1].cost, s[0]))[:STATES])


def _keep(states: dict[int, _State], wanted: int, state: _State) -> None:
    if wanted not in states or state.cost < states[wanted].cost:
        states[wanted] = state


def joined(cover: SegmentCover, way: Way, wanted: int) -> SegmentCover | None:
    """The cover with one way in place of all those that compute the same values.

    None where these are not several, or where another way needs what only they leave.
    """
    parts = [w for w in cover.ways if w.inside & way.inside]
    inner = way.inside & ~(1 << way.inside.bit_length() - 1)
    others = [w for w in cover.ways if not w.inside & way.inside]
    union = 0
    for part in parts:
        union |= part.inside
    if len(parts) < 2 or union != way.inside:
        return None
    if wanted & inner or any(w.needs & inner for w in others):
        return None
    ticks = cover.ticks + way.ticks - sum(p.ticks for p in parts)
    ways = sorted((*others, way), key=lambda w: w.inside.bit_length())
    return SegmentCover(tuple(ways), ticks)
