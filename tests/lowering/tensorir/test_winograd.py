"""Which convolutions Winograd's algorithm computes, and that it computes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json, rows_merged
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.matrix import AMX, oriented
from mcfuser.lowering.tensorir.winograd import (
    TAPS,
    TRANSFORMS,
    Picture,
    convolved,
    convolves,
    fits,
    picture_of,
    pieces,
)
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Ints, Plan
from mcfuser.space.program import program
from tests.support.pictures import convolution

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)


def seen(chain: Chain) -> Picture | None:
    roles = chain.operators[0].product
    assert roles is not None
    return picture_of(chain, oriented(roles), "A")


def with_tensor(chain: Chain, name: str, **changes: object) -> Chain:
    tensors = tuple(replace(t, **changes) if t.name == name else t for t in chain.tensors)
    return replace(chain, tensors=tensors)


@pytest.mark.parametrize("out", TRANSFORMS)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_three_transforms_make_a_sum_over_windows(out: int, seed: int) -> None:
    t, rng = TRANSFORMS[out], np.random.default_rng(seed)
    d, g = rng.standard_normal((t.span, t.span)), rng.standard_normal((TAPS, TAPS))
    turned, weights, back = (np.asarray(m, float) for m in (t.turned, t.weights, t.back))
    numbers = (weights @ g @ weights.T) * (turned @ d @ turned.T)
    assert numbers.size == t.numbers
    expected = [[(d[y : y + TAPS, x : x + TAPS] * g).sum() for x in range(out)] for y in range(out)]
    np.testing.assert_allclose(back @ numbers @ back.T, expected, atol=1e-11)


@pytest.mark.parametrize(("last", "line", "step"), [(False, 12, 1), (True, 60, 5)])
def test_lines_along_an_axis_and_lines_of_one_axis_are_the_same_picture(
    last: bool, line: int, step: int
) -> None:
    chain = convolution(6, 10, 16, last=last)
    two, one = seen(chain), seen(rows_merged(chain))
    assert two == Picture(("m", "i"), ("s", "t"), ("k",), 1, 6, 10, line, step)
    assert two.channels_last == last
    assert one is not None and one.rows != two.rows
    assert replace(one, rows=two.rows) == two


def test_three_channels_that_lie_side_by_side_are_no_window() -> None:
    chain = convolution(6, 10, 16, channels=3, last=True)
    assert seen(chain) == Picture(("m", "i"), ("s", "t"), ("k",), 1, 6, 10, 36, 3)


def test_the_channels_that_lie_side_by_side_are_the_last_ones() -> None:
    chain = convolution(6, 10, 16, channels=4, last=True)
    axes = [replace(a, extent=2) if a.name == "k" else a for a in chain.axes]
    tensors = {
        "A": {"shape": ["p", "g", "k", "c", "m", "i", "s", "t"],
              "strides": [384, 4, 1, 2, 48, 4, 48, 4]},
        "B": {"shape": ["g", "k", "c", "s", "t", "n"], "constant": True},
    }  # fmt: skip
    parted = from_json({
        "axes": {a.name: a.extent for a in axes} | {"c": 2},
        "tensors": tensors,
        "operators": ["C[p, g, m, i, n] = sum[k, c, s, t] A[p, g, k, c, m, i, s, t] "
                      "* B[g, k, c, s, t, n]"],
    })  # fmt: skip
    picture = seen(parted)
    assert picture is not None and picture.channels == ("c", "k")


@pytest.mark.parametrize(
    "chain",
    [
        convolution(6, 10, 16, step=2),
        with_tensor(convolution(6, 10, 16), "A", dtype="float16"),
        with_tensor(convolution(6, 10, 16), "B", dtype="bfloat16"),
        with_tensor(convolution(6, 10, 16), "B", constant=False),
        convolution(6, 10, 16, step=2, last=True),
        with_tensor(convolution(6, 10, 16), "A", strides=(2400, 1200, 240, 24, 2, 24, 2)),
        with_tensor(convolution(6, 10, 16), "A", strides=(1200, 600, 1, 60, 5, 120, 10)),
        with_tensor(convolution(6, 10, 16), "A", strides=(1200, 600, 120, 12, 1, 24, 2)),
        with_tensor(convolution(6, 10, 16), "A", strides=(1200, 600, 120, 12, 1, 12, 2)),
    ],
    ids=["step", "half input", "half weights", "no constant", "step, channels last",
         "every second element", "dilated, channels last", "dilated", "dilated along lines"],
)  # fmt: skip
def test_other_convolutions_are_none_of_it(chain: Chain) -> None:
    assert seen(chain) is None and seen(rows_merged(chain)) is None


def test_a_window_of_five_is_none_of_it() -> None:
    chain = convolution(6, 10, 16)
    axes = tuple(replace(a, extent=5) if a.name in "st" else a for a in chain.axes)
    assert seen(replace(chain, axes=axes)) is None


@pytest.mark.parametrize(
    ("out", "tiles", "whole", "many"),
    [
        (2, {"m": 20, "s": 3, "t": 3}, True, 5),
        (2, {"m": 40, "s": 3, "t": 3}, True, 10),
        (2, {"m": 70, "s": 3, "t": 3}, True, 20),
        (2, {"m": 128, "s": 4, "t": 4}, True, 35),
        (2, {"m": 10, "s": 3, "t": 3}, False, 5),
        (2, {"m": 50, "s": 3, "t": 3}, False, 15),
        (2, {"m": 20, "s": 1, "t": 3}, False, 5),
        (2, {"m": 20, "s": 3, "t": 2}, False, 5),
        (4, {"m": 40, "s": 3, "t": 3}, True, 3),
        (4, {"m": 70, "s": 3, "t": 3}, True, 6),
        (4, {"m": 20, "s": 3, "t": 3}, False, 3),
        (4, {"m": 60, "s": 3, "t": 3}, False, 6),
    ],
)
def test_tiles_of_whole_windows_and_whole_pieces(
    out: int, tiles: dict[str, int], whole: bool, many: int
) -> None:
    """Of seven lines the last piece has fewer."""
    chain = rows_merged(convolution(7, 10, 16))
    picture = seen(chain)
    assert picture is not None

    def tile(a: str) -> Ints:
        return np.asarray([tiles.get(a, 1)])

    assert fits(picture, chain, out, tile).tolist() == [whole]
    assert pieces(picture, out, tile).tolist() == [many]


def test_no_piece_has_lines_of_two_pictures() -> None:
    chain = rows_merged(convolution(6, 10, 16, pictures=2))
    picture = seen(chain)
    assert picture is not None and picture.pictures == 2
    whole = np.asarray([120])
    found = [fits(picture, chain, out, lambda _: whole) for out in (2, 4)]
    assert [f.tolist() for f in found] == [[True], [False]]


def test_lines_along_an_axis_are_whole() -> None:
    chain = convolution(7, 10, 16)
    picture = seen(chain)
    assert picture is not None
    cases = {(2, 10): True, (3, 10): False, (7, 10): True, (8, 16): True, (2, 8): False}
    for (m, i), whole in cases.items():
        tiles = {"m": m, "i": i, "s": 3, "t": 3}
        assert bool(fits(picture, chain, 2, lambda a, t=tiles: np.asarray(t.get(a, 1)))) == whole


def test_the_knob_is_for_candidates_that_use_it() -> None:
    chain = rows_merged(convolution(6, 10, 16))
    plan = Plan(program(chain), parse("mn.kst"), frozenset("kst"))
    columns = {"p": 1, "g": 1, "m": 20, "n": 16, "k": 5, "s": 3, "t": 3}
    rows = [[columns[a] if a != "m" else m for a in plan.axes] for m in (20, 16, 40)]
    assert convolves(plan, np.asarray(rows), CPU).tolist() == [True, False, True]
    assert convolved(plan, np.asarray(rows), 4).tolist() == [False, False, True]


def test_beside_the_matrix_unit_it_is_not_used() -> None:
    unit = replace(CPU, bits=512, matrix=AMX, peak=(*CPU.peak, ("matrix", 2e12)))
    table = KnobTable(TensorirKnobs, unit)
    assert {(s.matrix, s.winograd) for s in table.settings} == {
        (False, 0), (True, 0), (False, 2), (False, 4),
    }  # fmt: skip
