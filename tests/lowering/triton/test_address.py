"""Addresses: strides along dimensions and axes, and how far they reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import Chain, Digit, Tensor, from_json, last_along, rows_merged
from mcfuser.expr import Read, parse
from mcfuser.lowering.triton.address import (
    Step,
    address,
    position_along,
    reach,
    side_by_side,
    steps,
    wide,
)
from tests.support.chains import chain
from tests.support.pictures import Windows, padded

SHAPES = {"X": "bmn"}
ROWS = Windows(14, 3, before=1, after=1)
DENSE = chain({"b": 2, "m": 3, "n": 5}, SHAPES, ["Y[b, m, n] = X[b, m, n] * 2.0"])


def input_of(c: Chain, **changes: object) -> Tensor:
    return replace(c.tensor("X"), **changes)  # type: ignore[arg-type]


def run_time(*axes: str) -> Chain:
    """The same chain, where extents of some axes are known at run time only, up to their value."""
    return from_json({
        "axes": {a: [1, n] if a in axes else n for a, n in (("b", 2), ("m", 3), ("n", 5))},
        "tensors": {"X": {"shape": list("bmn")}},
        "operators": ["Y[b, m, n] = X[b, m, n] * 2.0"],
    })  # fmt: skip


def read(said: str) -> Read:
    e = parse(said)
    assert isinstance(e, Read)
    return e


def test_a_tensor_without_strides_is_row_major() -> None:
    assert steps(DENSE, input_of(DENSE)) == ((Step(15),), (Step(5),), (Step(1),))
    laid = input_of(DENSE, strides=(1, 2, 6))
    assert steps(DENSE, laid) == ((Step(1),), (Step(2),), (Step(6),))
    numbered = input_of(DENSE, shape=("b", 4, "n"))
    assert steps(DENSE, numbered) == ((Step(20),), (Step(5),), (Step(1),))


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("n", (Step(3, ("n",)), Step(1, ("n",)), Step(1))),
        ("m", (Step(5, ("m",)), Step(5), Step(1))),
        ("mn", (Step(1, ("n", "m")), Step(1, ("n",)), Step(1))),
    ],
)
def test_a_stride_is_a_multiple_of_extents_known_at_run_time(
    axes: str, expected: tuple[Step, ...]
) -> None:
    c = run_time(*axes)
    assert steps(c, input_of(c)) == tuple((step,) for step in expected)


@pytest.mark.parametrize(
    ("said", "moves", "start"),
    [
        ("X[b, m, n]", {"b": (15,), "m": (5,), "n": (1,)}, (7,)),
        ("X[1, m + 2, n]", {"m": (5,), "n": (1,)}, (15 + 10 + 7,)),
        ("X[b, m - 1, n - 2]", {"b": (15,), "m": (5,), "n": (1,)}, ()),  # 7 less 5 and 2
        ("X[b, m + n, 2 * n]", {"b": (15,), "m": (5,), "n": (5 + 2,)}, (7,)),
        ("X[b, n, 5 - 5 * n]", {"b": (15,)}, (5 + 7,)),
    ],
)
def test_an_address_is_a_sum_over_axes_and_a_start(
    said: str, moves: dict[str, tuple[int, ...]], start: tuple[int, ...]
) -> None:
    found = address(DENSE, input_of(DENSE, offset=7), read(said).indices)
    expected = {a: tuple(map(Step, n)) for a, n in moves.items()}
    assert found == (expected, tuple(map(Step, start)))


def test_strides_of_one_axis_that_are_multiples_of_other_extents_are_apart() -> None:
    c = run_time("n")
    moves, start = address(c, input_of(c, offset=7), read("X[b, m + 2, m + 1]").indices)
    assert moves == {"b": (Step(3, ("n",)),), "m": (Step(1, ("n",)), Step(1))}
    assert start == (Step(8), Step(2, ("n",)))


DIGITS = (Digit(3, 40), Digit(2, 5), Digit(5, 1))
"""Positions of a row of 30 numbers, written in three digits."""


def test_a_position_is_written_in_digits() -> None:
    c = chain({"m": 30, "n": 4}, {"X": "mn"}, ["Y[m, n] = X[m, n] * 2.0"])
    laid = replace(c.tensor("X"), strides=(DIGITS, 200), offset=3)
    moves, start = address(c, laid, read("X[m, n]").indices)
    assert moves == {"m": (Step(40, unit=10), Step(5, unit=5, radix=2), Step(1, radix=5)),
                     "n": (Step(200),)}  # fmt: skip
    assert start == (Step(3),)
    expected = [40 * i + 5 * j + k for i in range(3) for j in range(2) for k in range(5)]
    found = [sum(s.digit(m) * s.number for s in moves["m"]) for m in range(30)]
    assert found == expected
    assert reach(c, laid) == 3 + 80 + 5 + 4 + 600
    at = address(c, laid, read("X[17, n]").indices)
    assert at == ({"n": (Step(200),)}, (Step(3 + expected[17]),))


@pytest.mark.parametrize(
    ("strides", "offset", "said", "expected"),
    [
        (None, 0, "X[b, m, n]", 16),
        (None, 4, "X[b, m, n]", 4),  # no tile begins at a multiple of more
        (None, 0, "X[b, n, m]", 16),
        ((384, 24, 1), 0, "X[b, m, n]", 8),
        ((384, 25, 1), 0, "X[b, m, n]", 1),
        ((1, 16, 384), 0, "X[b, m, n]", 16),
        ((384, 32, 2), 0, "X[b, m, n]", 1),
        ((1, 1, 384), 0, "X[b, m, n]", 1),  # windows: the next one begins an element further
        ((384, 16, (Digit(4, 64), Digit(4, 1))), 0, "X[b, m, n]", 4),
        ((384, 16, (Digit(4, 1), Digit(4, 64))), 0, "X[b, m, n]", 1),
    ],
)
def test_elements_side_by_side(
    strides: tuple[int, ...] | None, offset: int, said: str, expected: int
) -> None:
    c = chain(dict.fromkeys("bmn", 16), SHAPES, [f"Y[b, m, n] = {said} * 2.0"])
    laid = replace(c.tensor("X"), strides=strides, offset=offset)
    assert side_by_side(c, laid, read(said).indices) == expected


def test_the_position_along_padding() -> None:
    """Of windows that begin two positions before an array, every second one, with gaps."""
    across = Windows(17, 3, step=2, apart=3, before=2)
    c = padded(Windows(9, 3, before=1, after=1), across)
    t, indices = c.tensor("A"), read("A[p, k, m, s, i, t]").indices
    moves, start = address(c, t, indices)
    assert moves["m"] == moves["s"] == (Step(17),) and moves["i"] == (Step(2),)
    assert start == (Step(-17 - 2),)
    assert position_along(c, t, indices, 0) == ({"m": (Step(1),), "s": (Step(1),)}, (Step(-1),))
    along = {"i": (Step(2),), "t": (Step(3),)}
    assert position_along(c, t, indices, 1) == (along, (Step(-2),))
    assert last_along(t, 0) == 9
    assert last_along(t, 1) == 2 * (across.places - 1) + 6 - 2 == 16
    assert side_by_side(c, t, indices) == 1
    assert reach(c, t) == 3 * 9 * 17 - 1


@pytest.mark.parametrize(("last", "expected"), [(True, 16), (False, 1)])
def test_channels_lie_side_by_side_in_a_padded_picture(last: bool, expected: int) -> None:
    """All of a position's are inside the array, or none is; neighbouring positions may differ."""
    c = padded(ROWS, ROWS, columns=16, channels=64, last=last)
    assert side_by_side(c, c.tensor("A"), read("A[p, k, m, s, i, t]").indices) == expected


def test_the_position_of_merged_rows_is_a_digit() -> None:
    one = rows_merged(padded(ROWS, ROWS, columns=16))
    t, indices = one.tensor("A"), read("A[p, k, s, m, t]").indices
    moves, _ = position_along(one, t, indices, 0)
    assert moves == {"m": (Step(1, unit=14),), "s": (Step(1),)}
    moves, _ = position_along(one, t, indices, 1)
    assert moves == {"m": (Step(1, radix=14),), "t": (Step(1),)}


def test_the_reach_of_a_tensor_is_the_offset_of_its_last_element() -> None:
    assert reach(DENSE, input_of(DENSE)) == 29
    assert reach(DENSE, input_of(DENSE, offset=7)) == 36
    assert reach(DENSE, input_of(DENSE, strides=(0, 100, -1))) == 200
    assert reach(DENSE, input_of(DENSE, shape=("b", 4, "n"))) == 39
    c = run_time("m", "n")
    assert reach(c, input_of(c)) == 29


@pytest.mark.parametrize(("columns", "expected"), [(2**15, False), (2**15 + 1, True)])
def test_offsets_of_two_to_the_31_want_64_bits(columns: int, expected: bool) -> None:
    """The last of 2^31 elements is at an offset that 32 bits hold."""
    c = chain({"m": 2**16, "n": columns}, {"X": "mn"}, ["Y[m] = sum[n] X[m, n]"])
    assert wide(c) == expected
    out = chain({"m": 2**16, "n": columns}, {"X": "n"}, ["Y[m, n] = X[n] * 2.0"])
    assert wide(out) == expected
