"""The cheapest cover, beside every cover there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from mcfuser.graph import cover
from mcfuser.graph.cover import SegmentCover, Way, cheapest, joined


def bits(*numbers: int) -> int:
    return sum(1 << n for n in numbers)


def way(inside: Sequence[int], needs: Sequence[int], ticks: int, saved: int = 0) -> Way:
    return Way(bits(*needs), bits(*inside), ticks, saved)


def line(*ticks: int) -> list[list[Way]]:
    """Values that each need the one before, alone."""
    return [[way([i], [i - 1] if i else [], t)] for i, t in enumerate(ticks)]


def every(ways: Sequence[Sequence[Way]], wanted: int) -> Iterator[tuple[int, int]]:
    """The price and the saving of every choice of ways that computes what is wanted and needed."""
    rows: list[list[Way | None]] = [[None, *row] for row in ways]
    for chosen in itertools.product(*rows):
        found = [w for w in chosen if w is not None]
        needed = wanted
        for w in found:
            needed |= w.needs
        ends = sum(1 << n for n, w in enumerate(chosen) if w is not None)
        if needed == ends:
            yield sum(w.ticks for w in found), sum(w.saved for w in found)


@pytest.mark.parametrize("seed", range(40))
def test_no_cover_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    ways: list[list[Way]] = []
    for at in range(6):
        row = []
        for _ in range(rng.randint(1, 3)):
            inside = {at, *rng.sample(range(at), rng.randint(0, min(2, at)))}
            others = [n for n in range(at) if n not in inside]
            needs = rng.sample(others, rng.randint(0, min(2, len(others))))
            row.append(way(sorted(inside), needs, rng.randint(1, 9), rng.randint(0, 3)))
        ways.append(row)
    wanted = bits(5, *rng.sample(range(5), 2))
    found = cheapest(ways, wanted)
    assert found is not None
    least = min(every(ways, wanted), key=lambda e: (e[0], -e[1]))
    assert (found.ticks, sum(w.saved for w in found.ways)) == least


def test_a_way_for_several_values_wins_where_it_is_cheaper() -> None:
    ways = line(5, 5, 5)
    both = way([1, 2], [0], 9)
    ways[2].append(both)
    assert cheapest(ways, bits(2)) == SegmentCover((ways[0][0], both), 14)
    ways[2][1] = way([1, 2], [0], 11)
    found = cheapest(ways, bits(2))
    assert found is not None and found.ticks == 15


def test_of_equally_cheap_covers_the_one_that_saves_most_wins() -> None:
    ways = line(5, 5, 5)
    ways[1].append(way([0, 1], [], 10, saved=1))
    ways[2].append(way([1, 2], [0], 10, saved=2))
    found = cheapest(ways, bits(2))
    assert found is not None and ways[2][1] in found.ways


def test_what_is_wanted_is_computed_though_another_way_has_it_inside() -> None:
    ways = line(5, 5)
    ways[1].append(way([0, 1], [], 6))
    found = cheapest(ways, bits(0, 1))
    assert found is not None and found.ticks == 10  # 6 + 5 computes the first value twice


def test_values_are_computed_again_where_all_that_read_them_do_so() -> None:
    """Two ways have value 0 inside: it is no kernel of its own."""
    ways = [[way([0], [], 5)], [way([1], [0], 5)], [way([2], [0], 5)]]
    ways[1].append(way([0, 1], [], 6))
    ways[2].append(way([0, 2], [], 6))
    found = cheapest(ways, bits(1, 2))
    assert found is not None and found.ticks == 12


def test_a_forced_way_is_in_the_cover() -> None:
    ways = line(5, 5, 5)
    dear = way([1, 2], [0], 20)
    ways[2].append(dear)
    ways[1].append(way([0, 1], [], 1))
    found = cheapest(ways, bits(2), dear)
    assert found == SegmentCover((ways[0][0], dear), 25)
    assert cheapest(ways, bits(0), dear) is None  # what it ends with is not wanted


def test_without_a_way_there_is_no_cover() -> None:
    assert cheapest([[way([0], [], 1)], []], bits(1)) is None
    assert cheapest([[way([0], [], 1)], []], 0) == SegmentCover((), 0)


def test_the_cheapest_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches with two ways each, whose ends are read together: states double with each."""
    branches = 6
    ways: list[list[Way]] = []
    for at in range(branches):
        ways += [[way([2 * at], [], 1)], [way([2 * at + 1], [2 * at], 2)]]
        ways[-1].append(way([2 * at, 2 * at + 1], [], 4))
    wanted = bits(*range(1, 2 * branches, 2))
    monkeypatch.setattr(cover, "STATES", 2)
    found = cheapest(ways, wanted)
    assert found is not None and found.ticks <= 4 * branches


def test_a_way_joins_the_parts_that_are_inside_it() -> None:
    ways = line(5, 5, 5)
    found = cheapest(ways, bits(2))
    assert found is not None
    whole = way([1, 2], [0], 12)
    assert joined(found, whole, bits(2)) == SegmentCover((ways[0][0], whole), 17)
    assert joined(found, whole, bits(1, 2)) is None  # what only a part leaves is wanted
    assert joined(found, way([2], [1], 1), bits(2)) is None  # one part is no several
    assert joined(found, way([1, 2, 3], [], 1), bits(3)) is None  # not all of it is computed
