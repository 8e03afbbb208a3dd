"""Means and pivots: which sums are means, and which differences are taken from a pivot."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.algebra.pivot import REPEATED, centred, is_centred, pivot, pivots
from mcfuser.chain import Chain
from mcfuser.expr import parse, text
from mcfuser.space.reference import evaluate
from tests.support.chains import chain, inputs

AXES = {"m": 4, "n": 8}
MEAN = "A[m] = sum[n] X[m, n] * 0.125"


def of(*lines: str, **shapes: str) -> Chain:
    return chain(AXES, {"X": "mn", **shapes}, lines)


def same(c: Chain) -> Chain:
    """The centred chain, of the same results far from zero, where digits are at stake."""
    found = centred(c)
    x = inputs(c)
    for o in c.outputs:
        np.testing.assert_allclose(evaluate(found, x)[o], evaluate(c, x)[o], rtol=1e-9, atol=1e-12)
    return found


def test_a_difference_of_a_value_and_its_mean_is_taken_from_a_pivot() -> None:
    moved = same(of(MEAN, "Y[m, n] = X[m, n] - A[m]"))
    assert str(moved.operator("X_shift")) == "X_shift[m, n] = X[m, n] - X[m, 0]"
    assert str(moved.operator("A_shift")) == "A_shift[m] = sum[n] X_shift[m, n]"
    assert str(moved.operator("Y")) == "Y[m, n] = X_shift[m, n] - A_shift[m] * 0.125"


def test_only_a_whole_mean_cancels_the_pivot() -> None:
    for factor in (0.1, 0.2):
        c = of(MEAN.replace("0.125", str(factor)), "Y[m, n] = X[m, n] - A[m]")
        assert centred(c) == c


def test_a_factor_of_the_difference_does_not_matter() -> None:
    moved = same(of(MEAN, "Y[m, n] = exp(2.0 * X[m, n] - 2.0 * A[m])"))
    assert "A_shift" in [o.out for o in moved.operators]


@pytest.mark.parametrize("reciprocal", [float(np.float32(1 / 8)), float(np.float32(1 / 7))])
def test_a_reciprocal_that_was_rounded_to_float32_is_one(reciprocal: float) -> None:
    extent = round(1 / reciprocal)
    lines = [f"A[m] = sum[n] X[m, n] * {reciprocal!r}", "Y[m, n] = X[m, n] - A[m]"]
    c = chain(AXES | {"n": extent}, {"X": "mn"}, lines)
    assert centred(c) != c


REFUSED = {
    "a maximum": ["A[m] = max[n] X[m, n]"],
    "a sum within a domain": ["A[m] = sum[n] X[m, n] * 0.125 where n <= m"],
    "a sum of products": ["A[m] = sum[n] X[m, n] * X[m, n] * 0.125"],
    "a sum of what is computed first": ["B[m, n] = X[m, n]", "A[m] = sum[n] exp(B[m, n]) * 0.125"],
    "a sum of positions": ["A[m] = sum[n] n * 0.125"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_mean(name: str) -> None:
    c = of(*REFUSED[name], "Y[m, n] = X[m, n] - A[m]")
    assert centred(c) == c


def test_a_sum_over_one_position_or_so_many_as_are_known_at_run_time_is_no_mean() -> None:
    for extent in (1, [2, 8]):
        c = chain(AXES | {"n": extent}, {"X": "mn"}, [MEAN, "Y[m, n] = X[m, n] - A[m]"])
        assert centred(c) == c


def test_as_many_differences_of_one_operator_are_written_as_are_likely() -> None:
    """Each is written on its own; the rest of them stay."""
    several = " * ".join(f"tanh(X[m, n] - A[m] + {i}.0)" for i in range(REPEATED + 2))
    moved = same(of(MEAN, f"Y[m, n] = {several}"))
    assert text(moved.operator("Y").body).count("X_shift") == REPEATED


def test_a_pivot_is_the_value_at_the_first_position() -> None:
    c = of("B[m, n] = X[m, n] * 2.0", "M[m] = max[n] B[m, n]")
    assert text(pivot(c, parse("X[m, n]"), "n")) == "X[m, 0]"
    assert text(pivot(c, parse("B[m, n]"), "n")) == "X[m, 0] * 2.0"
    assert text(pivot(c, parse("X[m, n]"), "mn")) == "X[0, 0]"


@pytest.mark.parametrize("said", ["M[m]", "n * 1.0", "3.0", "1.0 / X[m, n]", "log(X[m, n])"])
def test_what_has_no_pivot(said: str) -> None:
    """What must be computed first, no data, and what may be infinite there."""
    c = of("M[m] = max[n] X[m, n]")
    assert pivot(c, parse(said), "n") is None


@pytest.mark.parametrize(
    ("said", "centred_"),
    [
        ("X[m, n] - X[m, 0]", True),
        ("2.0 * X[m, n] - X[m, 0] - X[m, 0]", True),
        ("X[m, n] - X[m, 1]", False),
        ("X[m, n]", False),
        ("X[m, n] - 2.0 * X[m, 0]", False),
        ("X[m, n] - X[m, 0] + 1.0", False),
    ],
)
def test_what_vanishes_at_the_first_position_is_centred(said: str, centred_: bool) -> None:
    assert is_centred(of("Y[m, n] = X[m, n] * 1.0"), parse(said), "n") is centred_


def test_pivots_are_inputs_read_at_one_position_of_a_dimension() -> None:
    c = of("Y[m, n] = X[m, n] - X[m, 0] + B[n] + Z[m, 2]", B="n", Z="mn")
    assert pivots(c) == ("X", "Z")
