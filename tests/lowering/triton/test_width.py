"""Lanes along axes: powers of two, and enough of them for every product."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.lowering.triton.width import power, widths
from tests.support.chains import chain

SHAPES = {"A": "gmk", "B": "kn"}
LINE = "C[g, m, n] = sum[k] A[g, m, k] * B[k, n]"


def lanes(**tiles: int) -> dict[str, int]:
    """Lanes by axis, of a product with these tiles; `g` and `m` are its rows."""
    c: Chain = chain(dict.fromkeys("gmnk", 64), SHAPES, [LINE])
    roles = c.operators[0].product
    assert roles is not None and roles.rows == ("g", "m")
    found = widths(c, [roles], {**dict.fromkeys("gmnk", 64), **tiles}.__getitem__)
    return {a: int(n) for a, n in found.items()}


def test_the_next_power_of_two() -> None:
    numbers = np.asarray([1, 2, 3, 4, 5, 16, 17, 1023, 1024])
    assert power(numbers).tolist() == [1, 2, 4, 4, 8, 16, 32, 1024, 1024]


@pytest.mark.parametrize(
    ("tiles", "expected"),
    [
        ({}, {}),
        ({"n": 48, "k": 33}, {"n": 64, "k": 64}),
        ({"n": 8, "k": 1}, {"n": 16, "k": 16}),
        ({"g": 1, "m": 1}, {"g": 1, "m": 16}),
        ({"g": 4, "m": 2}, {"g": 4, "m": 4}),  # 16 rows together
        ({"g": 4, "m": 4}, {"g": 4, "m": 4}),
        ({"g": 3, "m": 1}, {"g": 4, "m": 4}),
    ],
)
def test_a_product_has_sixteen_lanes_along_each_side(
    tiles: dict[str, int], expected: dict[str, int]
) -> None:
    assert lanes(**tiles) == {**dict.fromkeys("gmnk", 64), **expected}
