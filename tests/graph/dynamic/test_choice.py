"""The buckets whose padding costs least."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.errors import ModelError
from mcfuser.graph.dynamic.axes import Point, RuntimeExtent
from mcfuser.graph.dynamic.choice import (
    WORTH,
    Box,
    ChosenBuckets,
    candidates,
    choose,
    given_buckets,
)

ranges = st.tuples(st.integers(1, 40), st.integers(1, 300)).map(lambda p: (p[0], p[0] + p[1]))


def extent(low: int, high: int, name: str = "n") -> RuntimeExtent:
    return RuntimeExtent(name, low, high, (("x", 0),))


def attention(point: Point) -> float:
    return 1.0 + 0.1 * point["n"] + 0.01 * point["n"] ** 2


def padded(chosen: ChosenBuckets, low: int, high: int) -> float:
    """The mean over all extents of the time in the bucket that holds it over its own."""
    return cost([b.high["n"] for b in chosen.boxes], low, high)


def cost(ends: Sequence[int], low: int, high: int) -> float:
    return float(np.mean([attention({"n": min(e for e in ends if e >= n)}) / attention({"n": n})
                          for n in range(low, high + 1)]))  # fmt: skip


@settings(deadline=None)
@given(ranges, st.integers(1, 5))
def test_every_extent_is_in_one_bucket(span: tuple[int, int], most: int) -> None:
    boxes = choose([extent(*span)], attention, most).boxes
    assert 1 <= len(boxes) <= most
    covered = [n for b in boxes for n in range(b.low["n"], b.high["n"] + 1)]
    assert covered == list(range(span[0], span[1] + 1))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 10), st.integers(1, 14))
def test_no_other_cuts_are_better(low: int, width: int) -> None:
    high = low + width
    chosen = choose([extent(low, high)], attention, 3)
    ends = candidates(extent(low, high))
    best = min(
        cost((*cut, high), low, high)
        for count in (0, 1, 2)
        for cut in itertools.combinations(ends[:-1], count)
    )
    assert chosen.padded is not None and chosen.padded <= WORTH * best + 1e-9
    assert chosen.padded == pytest.approx(padded(chosen, low, high))


def test_buckets_cost_less_than_one_and_more_than_none() -> None:
    chosen = choose([extent(1, 512)], attention, 4)
    assert chosen.padded is not None and chosen.alone is not None
    assert 1.0 < chosen.padded < chosen.alone / 4
    assert chosen.alone == pytest.approx(cost([512], 1, 512))


def test_short_shapes_have_buckets_of_their_own() -> None:
    """The time of a long shape is a thousand times as long, and its padding counts no more."""
    ends = [b.high["n"] for b in choose([extent(8, 1024)], attention, 4).boxes]
    assert ends[0] <= 160 and ends[-1] == 1024


def test_buckets_that_save_nothing_are_not_made() -> None:
    assert len(choose([extent(1, 512)], lambda point: 1.0, 4).boxes) == 1


def test_a_model_without_chains_has_one_bucket() -> None:
    """Nothing is predicted for what is left to TVM."""
    chosen = choose([extent(1, 8)], lambda point: 0.0, 4)
    assert [b.high["n"] for b in chosen.boxes] == [8]
    assert chosen.padded == chosen.alone == 1.0


@given(ranges)
@settings(max_examples=20)
def test_chains_of_long_shapes_alone_are_no_error(span: tuple[int, int]) -> None:
    found = choose([extent(*span)], lambda point: max(0.0, point["n"] - span[0] - 0.5), 4)
    assert found.boxes[-1].high["n"] == span[1]


def test_nothing_is_predicted_for_one_bucket() -> None:
    def unasked(point: Point) -> float:
        raise AssertionError(f"predicted at {point}")

    (box,) = choose([extent(1, 512)], unasked, 1).boxes
    assert (box.low, box.high) == ({"n": 1}, {"n": 512})


def test_long_ranges_are_cut_where_tiles_end() -> None:
    assert all(n % 8 == 0 or n in (3, 509) for n in candidates(extent(3, 509)))
    assert len(candidates(extent(1, 100_000))) < 70


def test_buckets_of_two_extents_share_the_number() -> None:
    extents = [extent(1, 8, "b"), extent(16, 512, "n")]

    def both(point: Mapping[str, int]) -> float:
        return point["b"] * attention(point)

    boxes = choose(extents, both, 6).boxes
    assert 1 < len(boxes) <= 6
    for b, n in itertools.product(range(1, 9), range(16, 513, 31)):
        holding = [x for x in boxes if b <= x.high["b"] and n <= x.high["n"]]
        first = holding[0]
        assert first.low["b"] <= b and first.low["n"] <= n


@given(ranges, st.integers(1, 6))
def test_chosen_buckets_can_be_given_again(span: tuple[int, int], most: int) -> None:
    extents = [extent(*span), RuntimeExtent("m", 2, 9, (("x", 1),))]
    chosen = choose(extents, lambda point: attention(point) * point["m"], most)
    assert given_buckets(extents, chosen.boxes[::-1]).boxes == chosen.boxes


@pytest.mark.parametrize(
    "boxes",
    [
        [], [Box({"n": 1}, {"n": 7})], [Box({"n": 2}, {"n": 8})], [Box({"m": 1}, {"m": 8})],
        [Box({"n": 1}, {"n": 4}), Box({"n": 6}, {"n": 8})],
        [Box({"n": 1}, {"n": 8}), Box({"n": 1}, {"n": 8})],
    ],
)  # fmt: skip
def test_buckets_that_do_not_divide_a_range_are_refused(boxes: list[Box]) -> None:
    with pytest.raises(ModelError, match=r"do not divide the ranges n 1\.\.8"):
        given_buckets([extent(1, 8)], boxes)
