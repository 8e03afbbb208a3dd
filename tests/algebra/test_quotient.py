"""Quotients by sums that may be empty: rows of nothing are zeros, and all other rows as ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.quotient import bounded, guarded, unguarded
from mcfuser.chain import Chain
from mcfuser.expr import parse
from mcfuser.space.expression import bind, loop_axes, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.chains import LINES, chain, inputs, named
from tests.support.tensorir_agree import WIDE, error, run

AXES = {"m": 6, "n": 40, "k": 8, "h": 8}
SHAPES = {"Q": "mk", "K": "nk", "V": "nh", "M": "mn", "L": "m"}
SCORES = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "X[m, n] = S[m, n] * 0.3 + M[m, n]"]


def softmax(after: bool, where: str = "") -> Chain:
    tail = (
        ["U[m, h] = sum[n] P[m, n] * V[n, h]{w}", "O[m, h] = U[m, h] / Z[m]"]
        if after
        else ["W[m, n] = P[m, n] / Z[m]", "O[m, h] = sum[n] W[m, n] * V[n, h]{w}"]
    )
    lines = [*SCORES, "R[m] = max[n] X[m, n]{w}", "P[m, n] = exp(X[m, n] - R[m])",
             "Z[m] = sum[n] P[m, n]{w}", *tail]  # fmt: skip
    return chain(AXES, SHAPES, [line.replace("{w}", where) for line in lines])


def by_hand(x: dict[str, np.ndarray], keep: np.ndarray) -> np.ndarray:
    """The softmax of the kept scores times V, row by row; nothing kept, nothing."""
    scores = (x["Q"] @ x["K"].T) * 0.3 + x["M"]
    out = np.zeros((len(scores), x["V"].shape[1]))
    for m, row in enumerate(scores):
        n = np.flatnonzero(keep[m] & (row > -np.inf))
        if len(n):
            weights = np.exp(row[n] - row[n].max())
            out[m] = weights @ x["V"][n] / weights.sum()
    return out


def schedules(c: Chain, pick: int) -> object:
    ready = program(c)
    every = tilings(ready.chain)
    tiles = {a: min(16, ready.chain.size(a)) for a in loop_axes(ready.chain)}
    dead = frozenset(a for a, n in tiles.items() if n >= ready.chain.size(a))
    expression = bind(ready.chain, every[pick % len(every)])
    return Plan(ready, expression, dead).schedule(tiles)


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("mask", [-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("pick", [0, 7, 15])
def test_masked_rows(after: bool, mask: float, pick: int) -> None:
    """Row 0 is masked throughout, row 1 in its first tiles, row 2 in its last."""
    c = softmax(after)
    x = {n: a.astype("float32") for n, a in inputs(c, pick).items()}
    x["M"][0, :], x["M"][1, :35], x["M"][2, 3:] = mask, mask, mask
    double = {n: a.astype(float) for n, a in x.items()}
    expected = by_hand(double, np.ones((6, 40), bool))
    np.testing.assert_allclose(evaluate(c, double)["O"], expected, rtol=1e-9, atol=1e-12)
    if mask == -np.inf:
        assert not expected[0].any()
    schedule = schedules(c, pick)
    found, _ = interpret(schedule, double)
    np.testing.assert_allclose(found["O"], expected, rtol=1e-9, atol=1e-12)
    compiled = run(schedule, c, WIDE, x)["O"]
    if mask != -1e9 and mask != -1e4:  # of those, what is left of a score is float32's rounding
        assert error({"O": compiled}, {"O": expected}) < 1e-5
    assert np.isfinite(compiled).all()
    assert error({"O": compiled[1:]}, {"O": expected[1:]}) < 1e-5


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("pick", [0, 5, 11])
def test_rows_whose_domain_is_empty(after: bool, pick: int) -> None:
    c = softmax(after, " where n < L[m]")
    x = {n: a.astype("float32") for n, a in inputs(c, pick).items()}
    x["L"] = np.asarray([0, 1, 16, 17, 40, 0], "float32")
    keep = np.arange(40) < x["L"][:, None]
    expected = by_hand({n: a.astype(float) for n, a in x.items()}, keep)
    np.testing.assert_allclose(evaluate(c, x)["O"], expected, rtol=1e-9, atol=1e-12)
    schedule = schedules(c, pick)
    found, _ = interpret(schedule, x)
    np.testing.assert_allclose(found["O"], expected, rtol=1e-9, atol=1e-12)
    assert error(run(schedule, c, WIDE, x), {"O": expected}) < 1e-5


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("where", ["", " where n <= m"])
def test_a_guard_stops_neither_hoist_nor_roll(after: bool, where: str) -> None:
    ready = program(softmax(after, where))
    assert {d.moving for d in dependences(ready.chain)} == {"R"}
    assert len(ready.repairs) == len(dependences(ready.chain)) == 2


def test_a_quotient_under_a_sum_that_stays_there_is_still_repaired() -> None:
    lines = ["R[m] = max[n] M[m, n]", "Z[m] = sum[n] exp(M[m, n] - R[m])",
             "W[m, n] = exp(M[m, n] - R[m]) / Z[m] where n <= m",
             "T[m] = sum[n] W[m, n] * M[m, n]"]  # fmt: skip
    c = chain(AXES, SHAPES, lines)
    assert "select(" in str(guarded(c).operator("W"))
    ready = program(c)
    assert "T" in {d.target for d in dependences(ready.chain) if d.moving == "Z"}
    assert len(ready.repairs) == 3


GUARDED = [
    ("Z[m] = sum[n] exp(M[m, n])", "M[m, n] / Z[m]"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / (2.0 * Z[m])"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / (Z[m] + 1.0)"),
    ("Z[m] = sum[n] M[m, n] * M[m, n]", "M[m, n] / sqrt(Z[m] / 40.0)"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / abs(Z[m])"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / exp(Z[m])"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / (1.0 - Z[m])"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / float16(1.0 + exp(-Z[m]))"),
    ("Z[m] = sum[n] M[m, n]", "select(Z[m] <= 0.0, M[m, n] / Z[m], 1.0)"),
]
LEFT = [
    ("Z[m] = max[n] M[m, n]", "M[m, n] / Z[m]"),
    ("Z[m] = sum[n] M[m, n]", "Z[m] / L[m]"),
    ("Z[m] = sum[n] M[m, n]", "1.0 / Z[m]"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / (1.0 + exp(-Z[m]))"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / float32(1.0 + exp(-Z[m]))"),
    ("Z[m] = sum[n] M[m, n] * M[m, n]", "M[m, n] / sqrt(Z[m] / 40.0 + 1e-05)"),
    ("Z[m] = sum[n] M[m, n]", "M[m, n] / max(Z[m], 1e-05)"),
    ("Z[m] = sum[n] M[m, n]", "select(Z[m] == 0.0, 0.0, M[m, n] / Z[m])"),
    ("Z[m] = sum[n] M[m, n]", "select(M[m, n] != 0.0, M[m, n] / Z[m], 0.0)"),
]


@pytest.mark.parametrize(("first", "body"), GUARDED + LEFT)
def test_quotients_by_sums_that_may_vanish_are_guarded(first: str, body: str) -> None:
    c = chain(AXES, SHAPES, [first, f"Y[m, n] = {body}"])
    found = guarded(c).operator("Y")
    assert (found == c.operator("Y")) == ((first, body) in LEFT)
    if (first, body) in GUARDED:
        assert unguarded(found.body) == c.operator("Y").body


@pytest.mark.parametrize(
    ("first", "factor", "expected"),
    [
        ("Z[m] = sum[n] M[m, n]", "Z[m]", False),
        ("Z[m] = sum[n] M[m, n]", "M[m, 0]", False),
        ("Z[m] = sum[n] M[m, n]", "tanh(Z[m]) + float32(M[m, 0] < Z[m])", True),
        ("Z[m] = sum[n] M[m, n]", "select(M[m, 0] < 1.0, 2.0, 3.0)", True),
        ("Z[m] = sum[n] M[m, n]", "select(0 < m, Z[m], 3.0)", False),
        ("Z[m] = sum[n] M[m, n] * M[m, n]", "3.0 / (Z[m] + 1.0)", True),
        ("Z[m] = sum[n] M[m, n] * M[m, n]", "M[m, 0] / (Z[m] + 1.0)", False),
        ("Z[m] = sum[n] int32(M[m, n])", "Z[m]", True),
        ("Z[m] = max[n] M[m, n]", "Z[m]", True),
        ("Z[m] = max[n] -M[m, n]", "Z[m]", False),
        ("Z[m] = max[n] 0.5 * M[m, n] + 1.0", "Z[m]", True),
        ("Z[m] = max[n] abs(M[m, n])", "Z[m]", False),
        ("Z[m] = sum[n] exp(M[m, n])", "Z[m]", True),
        ("Z[m] = sum[n] exp2(2.0 - M[m, n])", "Z[m]", False),
        ("Z[m] = sum[n] exp(L[m] - n)", "Z[m]", True),
    ],
)
def test_a_factor_is_bounded_where_no_mask_makes_it_infinite(
    first: str, factor: str, expected: bool
) -> None:
    c = chain(AXES, SHAPES, [first, f"Y[m] = {factor}"])
    assert bounded(c, parse(factor)) == expected


def test_the_sum_of_a_row_and_its_maximum_is_bounded_as_the_maximum_starts_at_the_lowest() -> None:
    lines = ["R[m] = max[n] M[m, n]", "Z[m] = sum[n] exp(M[m, n] - R[m])", "Y[m] = Z[m]"]
    assert bounded(chain(AXES, SHAPES, lines), parse("Z[m]"))


def test_an_exponential_that_rounds_to_zero_divides_nothing_to_nothing() -> None:
    lines = ["Z[m] = sum[n] exp(M[m, n])", "Y[m, n] = select(n < 3, M[m, n], 0.0) / exp(-Z[m])"]
    c = chain(AXES, SHAPES, lines)
    found = evaluate(c, {"M": np.full((6, 40), 5.0)})["Y"]
    assert np.isposinf(found[:, :3]).all()
    assert not found[:, 3:].any()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(LINES)))
def test_guarding_twice_is_guarding_once(name: str) -> None:
    once = guarded(named(name, dict.fromkeys("bmnkhpc", 4)))
    assert guarded(once) == once


def test_a_maximum_repaired_for_a_row_that_was_masked_so_far() -> None:
    """The logarithm of a sum of nothing must not touch a maximum of nothing."""
    where = "where n < L[m] and 8 <= n"
    lines = [f"R[m] = max[n] M[m, n] {where}", f"Z[m] = sum[n] exp(M[m, n] - R[m]) {where}",
             f"T[m] = max[n] M[m, n] - R[m] - log(Z[m]) {where} and 20 <= n"]  # fmt: skip
    c = chain(AXES, SHAPES, lines)
    x = inputs(c)
    x["L"][:] = 40
    ready = program(c)
    assert len(ready.repairs) == 3
    for n in (4, 8, 16, 40):
        dead = frozenset({"m"} | ({"n"} if n == 40 else set()))
        schedule = Plan(ready, tilings(ready.chain)[0], dead).schedule({"m": 6, "n": n})
        found, _ = interpret(schedule, x)
        np.testing.assert_allclose(found["T"], evaluate(c, x)["T"], rtol=1e-9)
