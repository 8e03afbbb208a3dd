"""Summands multiplied out: what stays under the sum, and what is applied to it afterwards."""

from __future__ import annotations

import pytest

from mcfuser.algebra.terms import ONE, Summand, Term, added_parts, as_map, terms
from mcfuser.expr import Expr, parse, text
from tests.support.chains import chain

AXES = {"m": 4, "n": 6}
SHAPES = {"X": "mn", "V": "n", "w": "m"}


def summand(body: str, first: str = "Z[m] = sum[n] X[m, n]", shifts: bool = True) -> Summand:
    c = chain(AXES, SHAPES, [first, f"O[m] = sum[n] {body}"])
    return Summand(c, c.operator("O"), shifts)


def applied(t: Term) -> str:
    """What is done to the sum `t` of what stays."""
    e: Expr = parse("t") if t.inner != ONE else ONE
    for wrap in t.outer:
        e = wrap(e)
    return text(e)


def split(body: str, shifts: bool = True) -> list[tuple[str, str]]:
    at = summand(body, shifts=shifts)
    return [(text(t.inner), applied(t)) for t in terms(at, at.operator.body)]


@pytest.mark.parametrize(
    ("body", "inner", "outer"),
    [
        ("X[m, n] * V[n]", "X[m, n] * V[n]", "t"),
        ("X[m, n] / Z[m]", "X[m, n]", "t / Z[m]"),
        ("X[m, n] * Z[m]", "X[m, n]", "t * Z[m]"),
        ("Z[m] * X[m, n]", "X[m, n]", "t * Z[m]"),
        ("X[m, n] / Z[m] * V[n]", "X[m, n] * V[n]", "t / Z[m]"),
        ("X[m, n] / (V[n] * Z[m])", "X[m, n] / V[n]", "t / Z[m]"),
        ("pow(X[m, n] / Z[m], 2.0)", "X[m, n] * X[m, n]", "t / Z[m] / Z[m]"),
    ],
)
def test_factors_leave_the_sum(body: str, inner: str, outer: str) -> None:
    ((stays, done),) = split(body, shifts=False)
    assert (stays, done) == (inner, outer)


def test_a_divisor_that_needs_a_new_map_is_not_taken_apart() -> None:
    lines = ["Z[m] = sum[n] X[m, n]", "D[m, n] = exp(X[m, n]) / Z[m]",
             "O[m] = sum[n] V[n] / D[m, n]"]  # fmt: skip
    c = chain(AXES, SHAPES, lines)
    at = Summand(c, c.operator("O"), False)
    assert terms(at, parse("D[m, n]"))[0].maps  # under the sum it would be exp(X) alone
    (only,) = terms(at, at.operator.body)
    assert (only.inner, only.outer, only.maps) == (at.operator.body, (), ())


def test_what_does_not_vary_leaves_nothing_under_the_sum() -> None:
    at = summand("X[m, n] / Z[m]")
    (t,) = terms(at, parse("Z[m] * 2.0"))
    assert (t.inner, applied(t)) == (ONE, "Z[m] * 2.0")


def test_a_choice_with_a_quotient_that_may_be_infinite_is_not_taken_apart() -> None:
    """Zero times what the branch not taken would be is no number."""
    at = summand("select(n < 3, X[m, n] / Z[m], 0.0)")
    (only,) = terms(at, at.operator.body)
    assert only.outer == () and at.waits(only.inner)


@pytest.mark.parametrize(
    ("first", "leaves"),
    [("Z[m] = sum[n] exp(X[m, n])", True), ("Z[m] = sum[n] X[m, n]", False)],
)
def test_a_factor_leaves_a_choice_unless_a_mask_makes_it_infinite(first: str, leaves: bool) -> None:
    at = summand("select(n < 3, X[m, n] * Z[m], 0.0)", first)
    (only,) = terms(at, at.operator.body)
    assert bool(only.outer) == leaves
    assert at.waits(only.inner) != leaves


@pytest.mark.parametrize(
    "body", ["exp(X[m, n] * Z[m])", "X[m, n] * exp(Z[m] * V[n])", "max(X[m, n], Z[m])"]
)
def test_what_cannot_be_taken_apart_is_one_term_that_waits(body: str) -> None:
    at = summand(body)
    (only,) = terms(at, at.operator.body)
    assert only.outer == () or at.waits(only.inner)
    assert at.waits(only.inner)


def test_without_shifts_a_sum_that_waits_is_one_term() -> None:
    assert len(split("X[m, n] - Z[m]", shifts=False)) == 1


def test_a_product_of_sums_is_the_sum_of_all_products() -> None:
    found = split("(X[m, n] - X[m, 0] - Z[m]) * (X[m, n] - X[m, 0] - Z[m])")
    assert len(found) == 4
    assert [inner for inner, _ in found].count("1.0") == 1


def test_a_negative_term_is_negated_after_the_sum() -> None:
    found = split("V[n] * w[m] - X[m, n] / Z[m]")
    assert [outer for _, outer in found][-1] == "-(t / Z[m])"


def test_a_cast_that_rounds_stays_with_what_stays() -> None:
    ((inner, outer),) = split("bfloat16(X[m, n] / Z[m])", shifts=False)
    assert (inner, outer) == ("bfloat16(X[m, n])", "t / Z[m]")


def test_a_half_that_may_overflow_without_its_divisor_is_not_taken_apart() -> None:
    at = summand("float16(X[m, n] * 100.0 / Z[m])")
    (only,) = terms(at, at.operator.body)
    assert only.outer == () and at.waits(only.inner)


def test_a_half_in_a_wider_type_is_a_half() -> None:
    ((inner, outer),) = split("float16(float32(float16(X[m, n])) / Z[m])", shifts=False)
    assert (inner, outer) == ("float16(float32(float16(X[m, n])))", "t / Z[m]")


def test_a_half_may_be_chosen_whatever_the_condition_compares() -> None:
    ((inner, outer),) = split("float16(select(X[m, n] < 90.0, 1.0, 0.5) / Z[m])", shifts=False)
    assert (inner, outer) == ("float16(select(X[m, n] < 90.0, 1.0, 0.5))", "t / Z[m]")
    at = summand("float16(select(X[m, n] < 90.0, 1.0, 2.0) / Z[m])")
    (only,) = terms(at, at.operator.body)
    assert only.outer == ()


def test_an_integer_cast_is_not_taken_apart() -> None:
    at = summand("int32(X[m, n] / Z[m])")
    (only,) = terms(at, at.operator.body)
    assert only.outer == ()


def test_parts_of_a_sum_have_their_signs() -> None:
    found = added_parts(parse("a - (b - c) + -d"), False)
    assert [(minus, text(e)) for minus, e in found] == [
        (False, "a"), (True, "b"), (False, "c"), (True, "d"),
    ]  # fmt: skip


def test_a_map_that_the_chain_has_is_read_and_another_one_is_new() -> None:
    c = chain(AXES, SHAPES, ["P[m, n] = tanh(X[m, n])", "Z[m] = sum[n] X[m, n]",
                             "O[m] = sum[n] P[m, n] / Z[m]"])  # fmt: skip
    at = Summand(c, c.operator("O"), True)
    known = as_map(at, Term(parse("tanh(X[m, n])")), "P")
    assert text(known.inner) == "P[m, n]" and known.maps == ()
    new = as_map(at, Term(parse("exp(X[m, n])")), "P")
    ((o, tensor),) = new.maps
    assert text(new.inner) == f"{o.out}[m, n]" and text(o.body) == "exp(X[m, n])"
    assert tensor.name == o.out and tensor.dtype == "float32"


def test_reads_and_constants_need_no_map() -> None:
    at = summand("X[m, n] / Z[m]")
    for said in ("X[m, n]", "2.0", "bfloat16(X[m, n])"):
        t = Term(parse(said))
        assert as_map(at, t, "O") is t
