"""Results that are read elsewhere than where they are made."""

from __future__ import annotations

import pytest

from mcfuser.algebra.inline import inline_maps
from mcfuser.errors import ChainError
from mcfuser.space.program import program
from tests.support.chains import chain, inputs
from tests.support.every_schedule import right

MAPS = {
    "one before": ["T[m] = X[m] * 2.0 + m", "Y[k] = T[k + 1] - T[k]"],
    "the first": ["T[m] = X[m] * 2.0", "Y[m] = T[m] / (abs(T[0]) + 1.0)"],
    "along another axis": ["T[m] = X[m] * 2.0", "Y[m, k] = T[m] * T[k]"],
    "of a map": ["S[m] = X[m] + 1.0", "T[m] = S[m] * S[m]", "Y[k] = T[k + 2]"],
    "with a domain": ["T[m] = X[m] where m < 3", "Y[k] = T[k + 1] + 1.0"],
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_computed_again_where_it_is_read(name: str) -> None:
    c = chain({"m": 6, "k": 4}, {"X": "m"}, MAPS[name])
    moved = inline_maps(c)
    assert [o.out for o in moved.operators if o.out != "T"] != []
    assert right(c, inputs(c)) > 0


def test_a_map_of_whole_numbers_is_whole_there_too() -> None:
    from mcfuser.chain import from_json

    c = from_json({
        "axes": {"m": 6, "k": 4},
        "tensors": {"X": {"shape": ["m"]}, "T": {"shape": ["m"], "dtype": "int32"}},
        "operators": ["T[m] = X[m] * 3.0", "Y[k] = T[k + 1] * 0.5"],
    })  # fmt: skip
    assert str(inline_maps(c)) == "Y[k] = int32(X[k + 1] * 3.0) * 0.5"
    right(c, inputs(c))


def test_a_reduction_that_is_read_elsewhere_needs_a_kernel_of_its_own() -> None:
    c = chain({"m": 6, "n": 5}, {"X": "mn"}, ["S[m] = sum[n] X[m, n]", "Y[m] = X[m, 0] - S[0]"])
    with pytest.raises(ChainError, match=r"reads 'S' at \[0\], but a kernel has it only at \[m\]"):
        program(c)


def test_a_chain_read_in_place_stays() -> None:
    c = chain({"m": 6, "n": 5}, {"X": "mn"}, ["S[m] = sum[n] X[m, n]", "Y[m] = X[m, 0] - S[m]"])
    assert inline_maps(c) is c
