"""What tiles of padded inputs read, counted without a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.chain import Chain, digits, from_json, rows_merged, sources, strides_of
from mcfuser.expr import Read
from mcfuser.lowering.tensorir.box import box_spans, boxes
from mcfuser.space.expression import bind, tilings
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, Load, statements
from tests.support.pictures import Windows, drawn_windows, padded
from tests.support.schedules import schedules

ROWS = Windows(14, 3, before=1, after=1)


def read_of(c: Chain) -> Read:
    return next(r for o in c.operators for r in sources(o) if r.tensor == "A")


def elements(c: Chain, **tiles: int) -> int:
    """The elements of the box of A where axes have these tiles, and others one position."""
    return math.prod(map(int, box_spans(c, read_of(c), lambda a: np.asarray(tiles.get(a, 1)))))


def test_a_box_has_what_is_around_its_lines() -> None:
    c = padded(ROWS, ROWS)
    assert elements(c) == 1
    assert elements(c, s=3, t=3) == 9
    assert elements(c, m=2, i=14, s=3, t=3) == 4 * 16
    assert elements(c, m=2, i=14, s=3, t=3, k=3) == 3 * 4 * 16
    assert elements(c, m=14, i=14, s=3, t=3) == 16 * 16


def test_windows_far_apart_have_all_between_them() -> None:
    wide = Windows(17, 2, step=3, apart=4, before=2, after=2)
    c = padded(wide, ROWS)
    assert wide.places == 6
    assert elements(c, m=2, s=2) == 1 * 3 + 4 + 1


def test_positions_of_whole_lines_have_whole_lines() -> None:
    """Of merged rows: tiles of lines, of parts of a line, and of what begins within one."""
    c = rows_merged(padded(ROWS, ROWS, columns=16))
    assert elements(c, m=28, s=3, t=3) == 4 * 16
    assert elements(c, m=7, s=3, t=3) == 3 * 9
    assert elements(c, m=10, s=3, t=3) == 4 * 16  # ten positions touch two lines at most
    assert elements(c, m=196, s=3, t=3) == 16 * 16


def read_in(c: Chain, tiles: dict[str, int], begin: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """The position along each padding, and the value of each other digit, of all that the tile
    which begins there reads."""
    r, t = read_of(c), c.tensor("A")
    ranges = [range(begin[i.plain], min(begin[i.plain] + tiles[i.plain], c.size(i.plain)))
              for i in r.indices if i.plain is not None]  # fmt: skip
    along = [digits(s, n) for s, n in zip(strides_of(c, "A"), c.shape("A"), strict=True)]
    for at in product(*ranges):
        padding, others = [0] * len(t.padding), []
        for position, ds in zip(at, along, strict=True):
            left = position
            for d in reversed(ds):
                left, value = divmod(left, d.extent)
                if d.padding is None:
                    others.append(value)
                else:
                    padding[d.padding] += value * d.stride // t.padding[d.padding].stride
        yield (*padding, *others)


@given(st.integers(0, 10**9))
def test_every_tile_fits_its_box(seed: int) -> None:
    rng = Random(seed)
    c = padded(drawn_windows(rng), drawn_windows(rng), rng.choice((0, 5)), 2, rng.choice((1, 2)))
    c = rows_merged(c) if rng.random() < 0.5 else c
    if not c.tensor("A").padding:
        return
    axes = [i.plain or "" for i in read_of(c).indices]
    tiles = {a: rng.choice((1, 2, 3, 7, 14, 64)) for a in axes}
    begin = {a: rng.randrange(-(-c.size(a) // tiles[a])) * tiles[a] for a in axes}
    seen = np.array([*read_in(c, tiles, begin)])
    spans = np.prod(seen.max(0) - seen.min(0) + 1)
    assert spans <= elements(c, **tiles)


def scheduled(c: Chain, **tiles: int) -> Schedule:
    return schedules(c, bind(c, tilings(c)[0]), {a.name: 64 for a in c.axes} | tiles)


def test_strides_in_a_box_are_those_of_its_dense_array() -> None:
    c = padded(ROWS, ROWS)
    (box,) = boxes(scheduled(c, k=1, m=2)).values()
    assert [int(d.span) for d in box.dimensions] == [1, 1, 4, 16] or box.size == 64
    assert box.strides[2:] == (16, 16, 1, 1)
    assert box.line(14) == 16 and box.line(1) == 1


def test_a_tensor_without_padding_has_no_box() -> None:
    inside = Windows(14, 3)
    assert boxes(scheduled(padded(inside, inside))) == {}


def test_what_has_no_box_is_refused() -> None:
    two = from_json({
        "axes": {"m": 6, "t": 3},
        "tensors": {"A": {"shape": ["m", "t"], "strides": [1, 1], "padding": [
            {"dimensions": [0, 1], "extent": 6, "stride": 1, "before": 1}]}},
        "operators": ["C[m] = sum[t] A[m, t]"],
    })  # fmt: skip
    schedule = scheduled(two)
    (found,) = (s for s, _ in statements(schedule.body) if isinstance(s, Load))
    twice = replace(schedule, body=(found, *schedule.body))
    with pytest.raises(Illegal, match="is loaded in two places"):
        boxes(twice)
