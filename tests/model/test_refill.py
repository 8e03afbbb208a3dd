"""What cores read from beyond their private caches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from mcfuser.chain import BYTES, flat_size
from mcfuser.expr import axes
from mcfuser.model.refill import outgrown, refilled
from mcfuser.space.expression import loop_axes, parse, tilings
from mcfuser.space.plan import Plan, elements, repeats, sizes_of
from mcfuser.space.program import program
from mcfuser.space.statement import Load, statements
from tests.support.chains import named
from tests.support.pictures import Windows, depthwise, padded
from tests.support.plans import candidates

EVERYTHING, NOTHING = 1 << 60, 1
LINEAR = named("linear", {"m": 256, "n": 512, "k": 128})
LEFT, RIGHT = 4 * 256 * 128, 4 * 128 * 512


def read(expression: str, tiles: dict[str, int], cache: int, dead: str = "") -> float:
    plan = Plan(program(LINEAR), parse(expression), frozenset(dead))
    rows = np.asarray([[tiles.get(a, 1) for a in plan.axes]], np.int64)
    bias = next((4 * LINEAR.size("n") for t in LINEAR.inputs if LINEAR.shape(t) == (512,)), 0)
    return float(refilled(plan, sizes_of(plan, rows), cache)[0]) - bias


def test_part_of_a_cache_is_lost_before_it_is_full() -> None:
    kibibytes = np.asarray([0, 512, 1024, 1536, 4096]) * 1024.0
    assert outgrown(kibibytes, 1 << 20).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_what_fits_in_the_cache_is_read_once() -> None:
    tiles = {"m": 64, "n": 64, "k": 32}
    for expression in ("mn.k", "nm.k"):
        assert read(expression, tiles, EVERYTHING) == pytest.approx(LEFT + RIGHT, rel=0.01)


def test_a_loop_that_an_array_lacks_reads_it_again() -> None:
    """The outer loop of two decides which operand is read how often: a cache of 64 KiB holds a
    block's 16 rows of the left operand and its 16 columns of the right one, but not all of
    either."""
    tiles, cache = {"m": 16, "n": 16, "k": 128}, 64 << 10
    assert read("mn.k", tiles, cache, "k") == pytest.approx(LEFT + 16 * RIGHT, rel=0.02)
    assert read("nm.k", tiles, cache, "k") == pytest.approx(32 * LEFT + RIGHT, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(candidates())
def test_a_smaller_cache_reads_no_less_and_at_most_all_that_is_loaded(
    found: tuple[Plan, np.ndarray],
) -> None:
    plan, tiles = found
    sizes, chain = sizes_of(plan, tiles), plan.program.chain
    named_tiles = {b.name: b for b in plan.placed[0]}
    loaded, once = np.zeros(len(tiles)), np.zeros(len(tiles))
    for s, outer in statements(plan.placed[1]):
        if isinstance(s, Load):
            around = [loop.axis for loop in outer]
            tile = BYTES[chain.tensor(s.read.tensor).dtype] * elements(
                sizes, named_tiles[s.buffer], around
            )
            loaded += tile * repeats(sizes, outer)
            read_axes = axes(s.read)
            once += tile * repeats(sizes, tuple(x for x in outer if x.axis in read_axes))
    seen = [refilled(plan, sizes, cache) for cache in (NOTHING, 1 << 12, 1 << 14, EVERYTHING)]
    assert seen[0] == pytest.approx(loaded) and seen[-1] == pytest.approx(once)
    for smaller, larger in pairwise(seen):
        assert np.all(smaller >= (1 - 1e-12) * larger)


@pytest.mark.parametrize("tiles", [{}, {"m": 7}])
def test_elements_that_windows_share_are_read_once(tiles: dict[str, int]) -> None:
    """Windows of 3 x 3 over pictures of 16 x 16, four channels. Each half of one reads two lines of
    the other half, too."""
    chain = depthwise(14, 14)
    plan = Plan(program(chain), parse("mi.ks"), frozenset("iks" if tiles else "miks"))
    rows = np.asarray([[({"m": 14, "i": 14, "k": 3, "s": 3} | tiles)[a] for a in plan.axes]])
    lines = 4 * (2 * 9 if tiles else 16)
    found = refilled(plan, sizes_of(plan, rows), EVERYTHING)
    assert found == pytest.approx(4 * (16 * lines + 4 * 9), rel=0.02)


@pytest.mark.parametrize(("before", "extent"), [(0, 14), (1, 16)])
def test_padding_is_part_of_what_is_read(before: int, extent: int) -> None:
    """Three channels of a picture of 14 x 14, with zeros around it or none."""
    rows = Windows(14, 3, before=before, after=before)
    chain = padded(rows, rows, columns=16)
    plan = Plan(program(chain), tilings(chain)[0], frozenset(loop_axes(chain)))
    tiles = np.asarray([[chain.size(a) for a in plan.axes]])
    others = sum(4 * flat_size(chain, t) for t in chain.inputs if t != "A")
    found = refilled(plan, sizes_of(plan, tiles), EVERYTHING)
    assert found == pytest.approx(4 * 3 * extent**2 + others)
