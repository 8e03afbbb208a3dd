"""Repairs as steps, and which of them are bounded in floating point."""

from __future__ import annotations

import pytest
import sympy as sp

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.quotient import unguarded
from mcfuser.algebra.roll import Refusal, rolls
from mcfuser.algebra.stability import RepairStep, instability, step_of
from tests.support.chains import chain

T, R, S = (sp.Symbol(n, real=True) for n in "trs")
AXES = {"m": 4, "n": 6}


@pytest.mark.parametrize(
    ("h", "step"),
    [
        (T + R - S, RepairStep("shift", 1.0)),
        (T - 2 * R + 2 * S, RepairStep("shift", -2.0)),
        (T * sp.exp(R - S), RepairStep("exponential", 1.0)),
        (T * sp.exp(-3 * (R - S)), RepairStep("exponential", -3.0)),
        (T * R / S, RepairStep("ratio", 1.0)),
        (T * S**2 / R**2, RepairStep("ratio", -2.0)),
        (T + sp.log(R) - sp.log(S), RepairStep("logarithm", 1.0)),
        (T * (R + S), None),
        (T + R * S, None),
        (T**2, None),
    ],
)
def test_the_step_of_a_repair(h: sp.Expr, step: RepairStep | None) -> None:
    assert step_of(h, T, R, S) == step


def why(*lines: str, kind: str = "exponential", rate: float = 1.0) -> str | None:
    """Of the last line's operator, that the first line's moves: why it may be lost, or nothing."""
    c = chain(AXES, {"X": "mn", "W": "mn"}, lines)
    target, moving = c.operators[-1], c.operators[0]
    body = unguarded(through_maps(c, target.body))
    return instability(c, target, body, moving, RepairStep(kind, rate))  # type: ignore[arg-type]


MAXIMUM = "R[m] = max[n] X[m, n]"


@pytest.mark.parametrize(
    "body", ["exp(X[m, n] - R[m])", "exp2(X[m, n] - R[m])", "exp(X[m, n] - R[m]) * W[m, n]",
             "exp(2.0 * X[m, n] - 2.0 * R[m])", "exp(X[m, n] - R[m] + 3.0)",
             "select(n < 3, exp(X[m, n] - R[m]), 0.0)"]
)  # fmt: skip
def test_an_exponential_of_what_is_below_its_maximum_is_bounded(body: str) -> None:
    assert why(MAXIMUM, f"Z[m] = sum[n] {body}") is None


@pytest.mark.parametrize(
    "body", ["exp(W[m, n] - R[m])", "exp(2.0 * X[m, n] - R[m])", "exp(X[m, n] + W[m, n] - R[m])"]
)
def test_an_exponential_of_something_else_has_no_bound(body: str) -> None:
    assert "not the maximum of what it is taken from" in str(why(MAXIMUM, f"Z[m] = sum[n] {body}"))


def test_a_maximum_that_joined_something_is_at_least_what_it_was_taken_from() -> None:
    joined = "R[m] = max[n] max(X[m, n], W[m, 0])"
    assert why(joined, "Z[m] = sum[n] exp(X[m, n] - R[m])") is None


def test_a_sum_that_moves_an_exponential_has_no_bound() -> None:
    assert why("R[m] = sum[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])") is not None


def test_a_shift_by_a_running_sum_rounds_as_much_as_the_sum_does() -> None:
    assert why("R[m] = sum[n] X[m, n]", "Z[m] = max[n] X[m, n] - R[m]", kind="shift") is None


def test_a_shift_by_the_maximum_of_something_else_has_no_bound() -> None:
    assert why(MAXIMUM, "Z[m] = max[n] W[m, n] - R[m]", kind="shift") is not None
    assert why(MAXIMUM, "Z[m] = max[n] X[m, n] - R[m]", kind="shift") is None


def test_a_quotient_by_a_sum_of_weights_is_bounded_and_by_another_sum_is_not() -> None:
    c = chain(AXES, {"X": "mn"}, [MAXIMUM, "Z[m] = sum[n] exp(X[m, n] - R[m])",
                                  "O[m] = sum[n] X[m, n] / Z[m]"])  # fmt: skip
    step = RepairStep("ratio", 1.0)
    assert instability(c, c.operator("O"), c.operator("O").body, c.operator("Z"), step) is None
    other = chain(AXES, {"X": "mn"}, ["Z[m] = sum[n] X[m, n]", "O[m] = sum[n] X[m, n] / Z[m]"])
    reason = instability(other, other.operator("O"), other.operator("O").body,
                      other.operator("Z"), step)  # fmt: skip
    assert reason is not None and "near zero" in reason


@pytest.mark.parametrize(
    ("weight", "positive"),
    [
        ("exp(X[m, n] - R[m]) * 2.0", True),
        ("exp(X[m, n] - R[m]) / 2.0", True),
        ("pow(2.0, X[m, n] - R[m])", True),
        ("pow(2.0, X[m, n] - R[m]) * 2.0", True),
        ("exp(X[m, n] - R[m]) * W[m, n]", False),
        ("exp(X[m, n] - R[m]) * (-2.0)", False),
        ("W[m, n] / exp(X[m, n] - R[m])", False),
    ],
)
def test_a_sum_of_weights_times_what_may_be_negative_may_be_near_zero(
    weight: str, positive: bool
) -> None:
    c = chain(AXES, {"X": "mn", "W": "mn"}, [MAXIMUM, f"Z[m] = sum[n] {weight}",
                                             "O[m] = sum[n] X[m, n] / Z[m]"])  # fmt: skip
    target = c.operator("O")
    reason = instability(c, target, target.body, c.operator("Z"), RepairStep("ratio", 1.0))
    assert (reason is None) == positive


def test_weights_within_another_domain_than_their_maximum_may_be_near_zero() -> None:
    lines = ["R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m]) where n < 3",
             "O[m] = sum[n] X[m, n] / Z[m] where n < 3"]  # fmt: skip
    c = chain(AXES, {"X": "mn"}, lines)
    found = instability(
        c, c.operator("O"), c.operator("O").body, c.operator("Z"), RepairStep("ratio", 1.0)
    )
    assert found is not None


def test_what_is_no_step_has_no_bound_and_the_refusal_says_so() -> None:
    c = chain(AXES, {"X": "mn"}, [MAXIMUM, "Z[m] = sum[n] exp(X[m, n] - 2.0 * R[m])"])
    assert instability(c, c.operator("Z"), c.operator("Z").body, c.operator("R"), None) is not None
    (refused,) = rolls(c)
    assert isinstance(refused, Refusal) and "has no bound while 'R' moves" in refused.reason


@pytest.mark.parametrize("base", ["0.0", "(-0.5)"])
def test_a_power_of_no_positive_base_is_no_exponential(base: str) -> None:
    found = why(MAXIMUM, f"Z[m] = sum[n] pow({base}, X[m, n] - R[m])")
    assert found is not None and "has no bound" in found
