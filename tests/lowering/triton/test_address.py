"""Addresses: strides along dimensions and axes, and how far they reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import Chain, Tensor, from_json
from mcfuser.expr import Read, parse
from mcfuser.lowering.triton.address import Stride, address, reach, steps, wide
from tests.support.chains import chain

SHAPES = {"X": "bmn"}
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
    assert steps(DENSE, input_of(DENSE)) == (Stride(15), Stride(5), Stride(1))
    laid = input_of(DENSE, strides=(1, 2, 6))
    assert steps(DENSE, laid) == (Stride(1), Stride(2), Stride(6))
    numbered = input_of(DENSE, shape=("b", 4, "n"))
    assert steps(DENSE, numbered) == (Stride(20), Stride(5), Stride(1))


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("n", (Stride(3, ("n",)), Stride(1, ("n",)), Stride(1))),
        ("m", (Stride(5, ("m",)), Stride(5), Stride(1))),
        ("mn", (Stride(1, ("n", "m")), Stride(1, ("n",)), Stride(1))),
    ],
)
def test_a_stride_is_a_multiple_of_extents_known_at_run_time(
    axes: str, expected: tuple[Stride, ...]
) -> None:
    c = run_time(*axes)
    assert steps(c, input_of(c)) == expected


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
    expected = {a: tuple(map(Stride, n)) for a, n in moves.items()}
    assert found == (expected, tuple(map(Stride, start)))


def test_strides_of_one_axis_that_are_multiples_of_other_extents_are_apart() -> None:
    c = run_time("n")
    moves, start = address(c, input_of(c, offset=7), read("X[b, m + 2, m + 1]").indices)
    assert moves == {"b": (Stride(3, ("n",)),), "m": (Stride(1, ("n",)), Stride(1))}
    assert start == (Stride(8), Stride(2, ("n",)))


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
