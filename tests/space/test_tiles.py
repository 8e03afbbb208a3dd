"""Tile sizes: of any axis, of short ones, of lines of a picture, and along windows."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import from_json, gemm, merged, rows_merged
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.program import program
from mcfuser.space.prune import prune, space
from mcfuser.space.tiles import (
    COARSE,
    FINE,
    LARGEST,
    line_tiles,
    single,
    small_tiles,
    tile_sizes,
    windowed,
)
from tests.support.chains import depthwise, named
from tests.support.pictures import Windows, convolution, padded

H200 = CATALOGUE["nvidia/h200"]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, FINE))
def test_tile_sizes_are_multiples_of_16_and_the_extent(extent: int) -> None:
    sizes = tile_sizes(extent)
    assert len(sizes) == ceil(extent / 16)
    assert sizes[-1] == extent
    assert all(t % 16 == 0 and t < extent for t in sizes[:-1])
    assert list(sizes) == sorted(set(sizes))


def test_long_axes_have_fewer_sizes() -> None:
    """Of 110,592 positions along two axes there would be 16 million pairs of tiles."""
    sizes = tile_sizes(110_592, (1, 2))
    assert sizes[:3] == (1, 2, 16) and sizes[-2:] == (LARGEST, 110_592)
    assert [t for t in sizes if t <= FINE] == [1, 2, *range(16, FINE + 1, 16)]
    assert [t for t in sizes if t > FINE][:2] == [FINE + COARSE, FINE + 2 * COARSE]
    assert len(sizes) < 510
    assert tile_sizes(FINE + 1)[-2:] == (FINE, FINE + 1)


def test_axes_that_no_product_has_may_be_taken_by_the_row() -> None:
    assert tile_sizes(40, (1, 2, 4, 8)) == (1, 2, 4, 8, 16, 32, 40)
    assert tile_sizes(4, (1, 2, 4, 8)) == (1, 2, 4)
    norm = named("layer_norm", {"m": 512, "n": 256})
    assert [small_tiles(norm, a) for a in "mn"] == [(1, 2, 4, 8)] * 2
    assert space(norm).options[0][:5] == (1, 2, 4, 8, 16)
    chain = gemm(1, 64, 64, 64, 64)
    assert [small_tiles(chain, a) for a in "mnkh"] == [()] * 4


@pytest.mark.parametrize(("m", "small"), [(1, ()), (15, ()), (16, (1,)), (2048, (1,))])
def test_a_head_stands_alone_where_its_rows_fill_a_product(m: int, small: tuple[int, ...]) -> None:
    c = from_json({
        "axes": {"b": 2, "g": 8, "m": m, "n": 64, "k": 32},
        "tensors": {"Q": {"shape": list("bgmk")}, "K": {"shape": list("bnk")}},
        "operators": ["S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]"],
    })  # fmt: skip
    assert small_tiles(c, "g") == small
    assert small_tiles(c, "m") == small_tiles(c, "n") == ()


@pytest.mark.parametrize(
    ("extents", "small"),
    [((3, 3, 14, 14), (1,)), ((8, 2, 8, 2), ()), ((14, 15), ()), ((9, 16), (1,))],
)
def test_short_axes_stand_alone_where_all_of_them_are_no_tile(
    extents: tuple[int, ...], small: tuple[int, ...]
) -> None:
    """Rows of windows: 3 x 3 windows of 14 x 14 positions."""
    names = [f"m{i}" for i in range(len(extents))]
    rows = ", ".join(names)
    c = from_json({
        "axes": {"k": 64, "n": 64, **dict(zip(names, extents, strict=True))},
        "tensors": {"A": {"shape": [*names, "k"]}, "B": {"shape": ["k", "n"]}},
        "operators": [f"C[{rows}, n] = sum[k] A[{rows}, k] * B[k, n]"],
    })  # fmt: skip
    assert small_tiles(c, names[0]) == small
    left, _ = prune(space(c), H200)
    fits = [np.prod(tiles[:, [plan.axes.index(a) for a in names]], axis=1).min()
            for plan, tiles in left.tables or ()]  # fmt: skip
    assert min(fits) <= 256


def test_pairs_of_lines_are_tiles_of_a_picture_s_positions() -> None:
    """Of 7 x 10 positions: two, four and six lines, whether or not rule 3 leaves them."""
    c = rows_merged(convolution(7, 10, 16))
    assert line_tiles(c, "m") == (20, 40, 60)
    assert all(line_tiles(c, a.name) == () for a in c.axes if a.name != "m")
    at = space(c).axes.index("m")
    assert space(c, lines=True).options[at] == (16, 20, 32, 40, 48, 60, 64, 70)
    assert space(c).options[at] == (16, 32, 48, 64, 70)


def test_windows_are_taken_whole_or_position_by_position() -> None:
    c = depthwise()
    assert [small_tiles(c, a) for a in "ks"] == [(1,)] * 2
    assert [small_tiles(c, a) for a in "mi"] == [(1, 2, 4, 8)] * 2
    assert windowed(c, program(c).axes) == {"k", "s"}
    for other in (depthwise(1), named("layer_norm", {"m": 512, "n": 256})):
        assert windowed(other, program(other).axes) == frozenset()


@pytest.mark.parametrize(
    ("last", "channels", "sizes"),
    [(True, 64, (1,)), (True, 32, None), (False, 64, (9,))],
)  # fmt: skip
def test_windows_are_taken_position_by_position_where_channels_fill_a_tile(
    last: bool, channels: int, sizes: tuple[int, ...] | None
) -> None:
    """Where they lie side by side; of few channels the whole depth is one axis."""
    along = Windows(14, 3, before=1, after=1)
    c = merged(padded(along, along, 32, channels, dtype="float16", last=last))
    found = space(c)
    every = dict(zip(found.axes, found.options, strict=True))
    assert every.get("s") == sizes
    assert [a for a in every if single(c, a)] == (["s"] if sizes == (1,) else [])


@pytest.mark.parametrize("walks", [None, True, False])
def test_a_back_end_walks_windows_or_takes_them_whole(walks: bool | None) -> None:
    c = depthwise()
    found = space(c, walks=walks)
    every = dict(zip(found.axes, found.options, strict=True))
    wanted = {None: (1, c.size("k")), True: (1,), False: (c.size("k"),)}
    assert every["k"] == every["s"] == wanted[walks]
    free = space(c)
    for a, sizes in zip(free.axes, free.options, strict=True):
        assert a in "ks" or every[a] == sizes
    norm = named("layer_norm", {"m": 512, "n": 256})
    assert space(norm, walks=walks).options == space(norm).options


def test_few_elements_that_are_added_up_are_one_tile() -> None:
    """Eight sums of four elements had 3,315 plans of 131,072 candidates."""
    names = "npqrstuv"
    c = from_json({
        "axes": {"m": 64, "i": 32, "w": 40, **dict.fromkeys(names, 4)},
        "tensors": {
            "W": {"shape": ["m", "i", "w"]},
            **{f"T{a}": {"shape": ["m", "i", a]} for a in names},
        },
        "operators": [
            "Y[m, i] = sum[w] W[m, i, w]",
            *(f"Z{a}[m, i] = sum[{a}] T{a}[m, i, {a}]" for a in names),
        ],
    })  # fmt: skip
    assert [small_tiles(c, a) for a in names] == [()] * len(names)
    assert small_tiles(c, "w") == (1, 2, 4, 8), "more than a tile of 16"
    left, _ = prune(space(c), H200)
    assert len(left.tables or ()) < 10
    d = depthwise(width=3)
    assert small_tiles(d, "k") == (1,), "a window's positions"
