"""Linear forms: what an expression is a sum of, and how it is written again."""

from __future__ import annotations

import pytest

from mcfuser.algebra.linear import NOTHING, ONE, added, linear, scaled, signed, written
from mcfuser.expr import Call, Cast, Const, Expr, parse, text

A, B = parse("A[m]"), parse("B[m]")


@pytest.mark.parametrize(
    ("said", "form"),
    [
        ("A[m]", {A: 1.0}),
        ("3.0", {ONE: 3.0}),
        ("A[m] + B[m]", {A: 1.0, B: 1.0}),
        ("A[m] - B[m]", {A: 1.0, B: -1.0}),
        ("-(A[m] - 2.0)", {A: -1.0, ONE: 2.0}),
        ("A[m] * 3.0", {A: 3.0}),
        ("3.0 * A[m]", {A: 3.0}),
        ("A[m] / 4.0", {A: 0.25}),
        ("2.0 * (A[m] + 3.0 * B[m]) - A[m]", {A: 1.0, B: 6.0}),
        ("A[m] + B[m] - A[m]", {B: 1.0}),
        ("A[m] - A[m]", {}),
        ("A[m] + 0.0 * B[m]", {A: 1.0}),
    ],
)
def test_the_coefficients_of_an_expression(said: str, form: dict[Expr, float]) -> None:
    assert linear(parse(said)) == form


@pytest.mark.parametrize("said", ["A[m] * B[m]", "2.0 / A[m]", "exp(A[m])", "A[m] / 0.0"])
def test_what_is_not_linear_is_an_atom_itself(said: str) -> None:
    e = parse(said)
    assert linear(e) == {e: 1.0}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_that_round_nothing_are_looked_through(dtype: str) -> None:
    assert linear(Cast(parse("A[m] + B[m]"), dtype)) == {A: 1.0, B: 1.0}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool"])
def test_casts_that_round_are_atoms(dtype: str) -> None:
    e = Cast(parse("A[m] + B[m]"), dtype)
    assert linear(e) == {e: 1.0}


def test_what_is_left_of_a_coefficient_by_rounding_alone_is_nothing() -> None:
    """49 * (1 / 49) is 1 - 2^-53, so one less that is no coefficient."""
    assert 49 * (1 / 49) != 1.0
    assert added({A: 49 * (1 / 49)}, {A: -1.0}) == {}
    assert added({A: 1.0 + 100 * NOTHING}, {A: -1.0}) != {}


def test_a_small_coefficient_is_not_lost_beside_a_large_one() -> None:
    assert added({A: 1e9}, {B: 1e-9}) == {A: 1e9, B: 1e-9}
    assert added({A: 1.0}, {A: 2.0}, 3.0) == {A: 7.0}


def test_no_form_that_is_given_is_changed() -> None:
    one = {A: 1.0}
    added(one, {A: 1.0, B: 2.0})
    scaled(one, 5.0)
    assert one == {A: 1.0}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({A: 1.0}, "A[m]"),
        ({A: -1.0}, "-A[m]"),
        ({A: -1.0, B: 2.0}, "B[m] * 2.0 - A[m]"),
        ({A: 1.0, ONE: -3.0}, "A[m] - 3.0"),
        ({A: -2.0, B: -3.0}, "A[m] * (-2.0) - B[m] * 3.0"),
    ],
)
def test_a_form_is_written_with_its_positive_parts_first(
    form: dict[Expr, float], said: str
) -> None:
    assert text(written(form)) == said
    assert linear(written(form)) == form


def test_a_form_of_nothing_is_zero() -> None:
    assert written({}) == Const(0.0)


def test_signed_parts_are_added_and_taken_away_in_order() -> None:
    assert text(signed([(True, A), (False, B), (True, Const(1.0))])) == "-A[m] + B[m] - 1.0"
    assert signed([(False, A)]) == A
    assert signed([(True, A)]) == Call("neg", (A,))
