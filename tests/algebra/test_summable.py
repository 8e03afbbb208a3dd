"""Terms of a sum: which still wait, and which take an offset from what is read off-centre."""

from __future__ import annotations

import pytest

from mcfuser.algebra.summable import summable
from mcfuser.algebra.terms import ONE, Summand, Term
from mcfuser.chain import Chain
from mcfuser.expr import Call, Expr, parse
from tests.support.chains import chain

AXES = {"m": 4, "n": 6}
SHAPES = {"X": "mn", "W": "mn", "v": "n"}
LINES = ["Z[m] = sum[n] X[m, n]", "O[m] = sum[n] X[m, n] / Z[m]"]


def summand(c: Chain | None = None) -> Summand:
    c = c or chain(AXES, SHAPES, LINES)
    return Summand(c, c.operator("O"), True)


def times(said: str) -> object:
    factor = parse(said)

    def wrap(e: Expr) -> Expr:
        return factor if e == ONE else Call("mul", (e, factor))

    return wrap


def term(inner: str, *outer: str) -> Term:
    return Term(parse(inner), tuple(times(o) for o in outer))  # type: ignore[misc]


def test_a_term_that_still_reads_a_reduction_over_the_axis_is_not_settled() -> None:
    assert not summable(summand(), [term("X[m, n] * Z[m]")])
    assert summable(summand(), [term("X[m, n]", "Z[m]")])


def test_two_terms_of_which_one_waits_are_not_settled() -> None:
    assert not summable(summand(), [term("X[m, n]"), term("Z[m]")])


def test_a_factor_that_is_a_sum_of_what_another_term_reads_is_an_offset() -> None:
    """X and its own sum, both far from zero, would cancel only after they were rounded."""
    assert not summable(summand(), [term("X[m, n]"), Term(ONE, (times("Z[m]"),))])  # type: ignore[arg-type]


def test_a_sum_of_something_else_is_no_offset() -> None:
    c = chain(AXES, SHAPES, ["Z[m] = sum[n] W[m, n]", "O[m] = sum[n] X[m, n] / Z[m]"])
    assert summable(summand(c), [term("X[m, n]"), Term(ONE, (times("Z[m]"),))])  # type: ignore[arg-type]


@pytest.mark.parametrize("body", ["X[m, n] - X[m, 0]", "X[m, n] * X[m, n]"])
def test_sums_of_what_is_centred_or_no_multiple_of_it_are_no_offset(body: str) -> None:
    c = chain(AXES, SHAPES, [f"Z[m] = sum[n] {body}", "O[m] = sum[n] X[m, n] / Z[m]"])
    assert summable(summand(c), [term("X[m, n]"), Term(ONE, (times("Z[m]"),))])  # type: ignore[arg-type]


@pytest.mark.parametrize("body", ["X[m, n] * 0.5", "3.0 * X[m, n]", "X[m, n] / 6.0"])
def test_a_multiple_of_an_input_has_its_offset(body: str) -> None:
    c = chain(AXES, SHAPES, [f"Z[m] = sum[n] {body}", "O[m] = sum[n] X[m, n] / Z[m]"])
    assert not summable(summand(c), [term("X[m, n]"), Term(ONE, (times("Z[m]"),))])  # type: ignore[arg-type]


def test_one_term_is_never_held_against_itself() -> None:
    assert summable(summand(), [Term(parse("X[m, n]"), (times("Z[m]"),))])  # type: ignore[arg-type]
