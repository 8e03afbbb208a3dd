"""Repairs of running reductions: derived, checked by their value, or refused with the reason."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import OLD, Refusal, Roll, _kept, _solve, rolls
from mcfuser.algebra.stability import RepairStep
from mcfuser.chain import LOWEST, Chain
from mcfuser.expr import Read, parse, reads, text
from mcfuser.space.expression import tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate, value
from tests.support.chains import chain, inputs, named, renamed

AXES = {"m": 4, "n": 6, "h": 3, "k": 5}
SHAPES = {"X": "mn", "M": "mn", "V": "nh", "w": "m"}


def the_roll(c: Chain, target: str, moving: str) -> Roll:
    found = [r for r in rolls(c) if (r.target, r.moving) == (target, moving)]
    assert len(found) == 1
    assert isinstance(found[0], Roll), found[0]
    return found[0]


def check(c: Chain, roll: Roll, seed: int) -> None:
    """h(g(r, c), r, r') = g(r', c), and h commutes with the reducer (Theorems 4.2 and 4.3)."""
    rng = np.random.default_rng(seed)
    body = through_maps(c, c.operator(roll.target).body)
    operands = {r: rng.uniform(0.3, 2.0) for r in reads(body)}

    def g(r: float) -> float:
        return value(body, lambda x: r if x.tensor == roll.moving else operands[x], lambda a: 0.7)

    def h(t: float, old: float, new: float) -> float:
        known = {roll.target: t, roll.moving + OLD: old, roll.moving: new}

        def read(x: Read) -> float:
            return known[x.tensor]  # KeyError where h would need what a running value has lost

        return value(roll.h, read, lambda a: pytest.fail(f"h depends on axis {a}"))

    old, new = sorted(rng.uniform(0.3, 2.0, 2))  # a maximum only rises
    np.testing.assert_allclose(h(g(old), old, new), g(new), rtol=1e-9)
    x, y = rng.uniform(0.3, 2.0, 2)
    together = np.add if c.operator(roll.target).reduce == "sum" else np.maximum
    np.testing.assert_allclose(
        h(together(x, y), old, new), together(h(x, old, new), h(y, old, new)), rtol=1e-9
    )
    np.testing.assert_allclose(h(x, old, old), x, rtol=1e-9)


# --- softmax, however it is written ---------------------------------------------------------

SCORES = ["X[m, n]", "X[m, n] * 0.125", "50.0 * tanh(X[m, n] / 50.0)", "X[m, n] + M[m, n]",
          "X[m, n] - w[m] * (m - n)",
          "select(n <= m, X[m, n], -30000.0)", "X[m, n] / 3.0 - 1.5"]  # fmt: skip
EXPONENTIALS = [
    "exp({x} - R[m])",
    "exp(-(R[m] - ({x})))",
    "exp((-R[m]) + {x})",
    "exp({x}) * exp(-R[m])",
    "exp({x}) / exp(R[m])",
    "exp2(({x} - R[m]) * 1.5)",
    "exp2(({x}) * 1.4426950408889634 - R[m] * 1.4426950408889634)",
    "pow(2.0, {x} - R[m])",
    "exp(0.5 * ({x}) - 0.5 * R[m])",
    "exp(({x} - R[m]) / 2.0)",
    "float32(exp(float32({x}) - R[m]))",
    "exp({x} - R[m] + 1.0)",
    "exp(({x} + 1.0) - (R[m] + 1.0))",
    "1.0 / exp(R[m] - ({x}))",
]
SCALED = ["{p}", "{p} * 2.0", "3.0 * ({p}) / 4.0", "{p} * (1.0 + w[m])", "w[m] * ({p})"]
WEIGHTED = ["({p}) * V[n, h]", "V[n, h] * ({p})", "(V[n, h] * 0.5) * (2.0 * ({p}))",
            "float16({p}) * float32(V[n, h])", "({p}) * (V[n, h] - 1.0)"]  # fmt: skip


@st.composite
def softmaxes(draw: st.DrawFn) -> Chain:
    score = draw(st.sampled_from(SCORES))
    mapped = draw(st.booleans())
    exponential = draw(st.sampled_from(EXPONENTIALS)).format(x="Y[m, n]" if mapped else score)
    p = draw(st.sampled_from(SCALED)).format(p=exponential)
    split = draw(st.booleans())
    where = " where n <= m" if draw(st.booleans()) else ""
    lines = [
        *([f"Y[m, n] = {score}"] if mapped else []),
        f"R[m] = max[n] {'Y[m, n]' if mapped else score}{where}",
        *([f"P[m, n] = {p}"] if split else []),
        f"Z[m] = sum[n] {'P[m, n]' if split else p}{where}",
        f"U[m, h] = sum[n] {draw(st.sampled_from(WEIGHTED)).format(p='P[m, n]' if split else p)}"
        + where,
        "O[m, h] = U[m, h] / Z[m]",
    ]
    c = chain(AXES, SHAPES, lines)
    if not draw(st.booleans()):
        return c
    letters = draw(st.permutations("mnhk"))
    names = {t.name: f"{t.name}{draw(st.integers(0, 9))}_" for t in c.tensors}
    return renamed(c, dict(zip("mnhk", letters, strict=True)), names)


@settings(max_examples=40, deadline=None)
@given(softmaxes(), st.integers(0, 99))
def test_every_softmax_rolls(c: Chain, seed: int) -> None:
    found = rolls(c)
    assert len(found) == 2
    for roll in found:
        assert isinstance(roll, Roll), roll
        check(c, roll, seed)


def test_the_online_softmax_is_derived() -> None:
    c = named("attention", dict.fromkeys("bmnkh", 4))
    roll = the_roll(c, "U", "R")
    assert (roll.axis, roll.g, roll.inverse) == (
        "n", "exp(c0 - r) * c1", "c1 = t*exp(-c0 + r)"
    )  # fmt: skip
    x = np.random.default_rng(0).uniform(0, 1, 3)
    names = dict(zip(["U", "R_old", "R"], x, strict=True))
    found = value(roll.h, lambda r: names[r.tensor], lambda a: None)
    np.testing.assert_allclose(found, x[0] * np.exp(x[1] - x[2]))


def test_a_repair_reads_its_operands_where_the_chain_has_them() -> None:
    roll = the_roll(named("attention", dict.fromkeys("bmnkh", 4)), "U", "R")
    shapes = {r.tensor: [i.plain for i in r.indices] for r in reads(roll.h)}
    assert shapes == {"U": ["b", "m", "h"], "R": ["b", "m"], "R_old": ["b", "m"]}


OTHERS = {
    "a maximum of what is shifted": ("max", "X[m, n] - R[m]"),
    "a maximum of what is scaled down": ("max", "exp(X[m, n] - R[m]) * M[m, n]"),
    "a maximum of what grows": ("max", "M[m, n] / exp(X[m, n] - R[m])"),
    "a sum of what grows": ("sum", "exp(R[m] - X[m, n])"),
    "a sum of squares of what grows": ("sum", "pow(exp(R[m] - X[m, n]), 2.0) * M[m, n]"),
    "a sum with two unknowns": ("sum", "(X[m, n] + M[m, n]) * tanh(X[m, n]) * exp(X[m, n] - R[m])"),
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(OTHERS)), st.integers(0, 99))
def test_what_else_can_be_repaired(name, seed) -> None:
    reduce, body = OTHERS[name]
    lines = ["R[m] = max[n] X[m, n]", f"T[m] = {reduce}[n] {body}"]
    c = chain(AXES, SHAPES, lines)
    check(c, the_roll(c, "T", "R"), seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99))
def test_three_reductions_in_a_row(seed) -> None:
    lines = ["R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])",
             "O[m] = max[n] X[m, n] - R[m] - log(Z[m])"]  # fmt: skip
    c = chain(AXES, SHAPES, lines)
    for target, moving in [("Z", "R"), ("O", "R"), ("O", "Z")]:
        check(c, the_roll(c, target, moving), seed)


def test_a_maximum_may_be_shifted_by_a_running_sum() -> None:
    lines = ["R[m] = sum[n] X[m, n]", "T[m] = max[n] 2.0 * X[m, n] - 0.5 * R[m]"]
    c = chain(AXES, SHAPES, lines)
    check(c, the_roll(c, "T", "R"), 0)


UNSTEADY = {
    "a maximum of another value": ("R[m] = max[n] M[m, n]", "sum", "exp(X[m, n] - R[m])"),
    "the other sign": ("R[m] = max[n] X[m, n]", "sum", "exp(X[m, n] + R[m])"),
    "another multiple": ("R[m] = max[n] X[m, n]", "sum", "exp(2.0 * X[m, n] - R[m])"),
    "a term that varies": ("R[m] = max[n] X[m, n]", "sum", "exp(X[m, n] - R[m] + M[m, n])"),
    "a maximum of another scale": ("R[m] = max[n] X[m, n]", "max", "X[m, n] * exp(-R[m])"),
    "a maximum shifted by another": ("R[m] = max[n] M[m, n]", "max", "X[m, n] - R[m]"),
    "a logarithm of a maximum": ("R[m] = max[n] X[m, n]", "max", "log(X[m, n]) - log(R[m])"),
    "a divisor that is a maximum": ("R[m] = max[n] X[m, n]", "sum", "exp(X[m, n]) / R[m]"),
    "a root of a maximum": ("R[m] = max[n] X[m, n]", "sum", "X[m, n] / sqrt(R[m] + 1.0)"),
    "an exponent that is a sum": ("R[m] = sum[n] X[m, n]", "sum", "exp(X[m, n] - R[m])"),
    "a divisor that is a sum": ("R[m] = sum[n] X[m, n]", "sum", "exp(X[m, n]) / R[m]"),
}


@pytest.mark.parametrize("name", UNSTEADY)
def test_what_may_overflow_or_vanish_on_the_way_is_refused(name: str) -> None:
    """A repair exists over the reals, but not for what has become infinite, or zero, meanwhile."""
    first, reduce, body = UNSTEADY[name]
    (refusal,) = rolls(chain(AXES, SHAPES, [first, f"T[m] = {reduce}[n] {body}"]))
    assert isinstance(refusal, Refusal)
    assert "while 'R' moves" in refusal.reason or "while it moves" in refusal.reason


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_repair_keeps_what_has_nothing_in_it_yet(reduce: str, name: str) -> None:
    """The identity stays the identity, whatever the first maximum is."""
    kind, body = OTHERS[name]
    if kind != reduce:
        return
    c = chain(AXES, SHAPES, ["R[m] = max[n] X[m, n]", f"T[m] = {kind}[n] {body}"])
    roll, identity = the_roll(c, "T", "R"), 0.0 if kind == "sum" else LOWEST
    for new in (-1e4, -1.0, 0.0, 3.0, 1e4):
        known = {"T": np.float64(identity), "R" + OLD: np.float64(LOWEST), "R": np.float64(new)}
        with np.errstate(all="ignore"):
            assert value(roll.h, lambda r, k=known: k[r.tensor], lambda a: None) == identity


# --- refused --------------------------------------------------------------------------------

REFUSED = {
    "variance": ("A[m] = sum[n] X[m, n]", "sum", "(X[m, n] - A[m]) * (X[m, n] - A[m])"),
    "shifted sum": ("A[m] = sum[n] X[m, n]", "sum", "X[m, n] - A[m]"),
    "sum of what is bent": ("A[m] = max[n] X[m, n]", "sum", "tanh(X[m, n] - A[m])"),
    "maximum scaled by either sign": ("A[m] = sum[n] X[m, n]", "max", "X[m, n] * A[m]"),
    "two terms": ("A[m] = max[n] X[m, n]", "sum", "exp(X[m, n] - A[m]) + M[m, n]"),
    "absolute": ("A[m] = max[n] X[m, n]", "sum", "abs(X[m, n] - A[m])"),
    "comparison": ("A[m] = max[n] X[m, n]", "sum", "select(X[m, n] < A[m], 1.0, 0.0)"),
    "floor": ("A[m] = max[n] X[m, n]", "sum", "floor(X[m, n] / A[m] * 127.0)"),
    "too long": ("A[m] = max[n] X[m, n]", "sum", " * ".join(["(X[m, n] - A[m])"] * 12)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_repaired_is_refused_with_the_reason(name: str) -> None:
    first, reduce, body = REFUSED[name]
    c = chain(AXES, SHAPES, [first, f"T[m] = {reduce}[n] {body}"])
    (refusal,) = rolls(c)
    assert isinstance(refusal, Refusal)
    assert (refusal.target, refusal.moving, refusal.axis) == ("T", "A", "n")
    assert refusal.reason.startswith(
        "operator 'T' cannot share the loop over axis 'n' with operator 'A': "
    )
    assert "\n" not in refusal.reason


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("variance", "no h with h(g(r, c), r, r') = g(r', c) commutes with sum for g = "),
        ("maximum scaled by either sign", "commutes with max for g = c0 * r"),
        ("absolute", "'abs' of the moving value cannot be inverted"),
        ("floor", "'floor' of the moving value cannot be inverted"),
        ("too long", "'T' has 47 operations around 'A'; at most 40 are inverted"),
    ],
)
def test_a_refusal_names_the_condition_that_failed(name: str, condition: str) -> None:
    first, reduce, body = REFUSED[name]
    (refusal,) = rolls(chain(AXES, SHAPES, [first, f"T[m] = {reduce}[n] {body}"]))
    assert isinstance(refusal, Refusal)
    assert condition in refusal.reason


@pytest.mark.parametrize("where", ["R[0]", "R[n]", "R[m] * R[0]"])
def test_a_value_elsewhere_is_refused(where: str) -> None:
    lines = ["R[m] = max[n] X[m, n]", f"T[m] = sum[n] exp(X[m, n]) / ({where})"]
    c = chain({"m": 6, "n": 6}, {"X": "mn"}, lines)
    (refusal,) = rolls(c)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.endswith("'T' reads 'R' at more than its own position")


def test_a_refusal_survives_other_names() -> None:
    first, reduce, body = REFUSED["variance"]
    c = chain(AXES, SHAPES, [first, f"T[m] = {reduce}[n] {body}"])
    (refusal,) = rolls(renamed(c, {"n": "j"}, {"T": "variance", "A": "mean"}))
    assert isinstance(refusal, Refusal)
    assert "'variance' cannot share the loop over axis 'j' with operator 'mean'" in refusal.reason


def test_a_domain_that_moves_is_refused() -> None:
    lines = [
        "R[m] = max[n] X[m, n]",
        "Z[m] = sum[n] exp(X[m, n] - R[m]) where X[m, n] < R[m] - 0.5",
    ]
    (found,) = rolls(chain(AXES, SHAPES, lines))
    assert isinstance(found, Refusal)


def test_a_maximum_of_a_map_with_a_domain_is_refused() -> None:
    lines = ["R[m] = max[n] X[m, n]", "D[m, n] = X[m, n] - R[m] where n <= m",
             "T[m] = max[n] D[m, n]"]  # fmt: skip
    (found,) = rolls(chain(AXES, SHAPES, lines))
    assert isinstance(found, Refusal)


# --- how long it takes ----------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, -0.5])
def test_a_factor_that_grows_leaves_nothing_what_it_is(rate: float) -> None:
    """It is infinite where the maximum moves from the lowest number, and zero times that is none;
    one that shrinks is zero there."""
    repaired = text(_kept(parse("t * f"), "sum", RepairStep("exponential", rate)))
    assert repaired.startswith("select(") == (rate < 0)


def test_equal_problems_are_solved_once() -> None:
    _solve.cache_clear()
    for cap in (10.0, 50.0):
        for score in ("X[m, n]", f"{cap} * tanh(X[m, n] / {cap})", "X[m, n] + M[m, n] * w[m]"):
            lines = [f"R[m] = max[n] {score}", f"Z[m] = sum[n] exp({score} - R[m])"]
            rolls(chain(AXES, SHAPES, lines))
    assert _solve.cache_info().misses == 1


def test_a_soft_cap_takes_no_longer_than_a_softmax() -> None:
    import sympy  # noqa: F401

    c = hoist(named("attention", dict.fromkeys("bmnkh", 64)))
    best = float("inf")
    for _ in range(3):
        _solve.cache_clear()
        start = time.process_time()
        rolls(c)
        best = min(best, time.process_time() - start)
    assert best < 1.0


def test_a_sum_over_more_than_its_maximum_walks_again() -> None:
    """Before the maximum has begun, exp(x - lowest) would have no bound."""
    lines = [
        "R[m] = max[n] X[m, n] where n <= m and m - n < 5",
        "Z[m] = sum[n] exp(X[m, n] - R[m]) where n <= m and m - n < 5 and n < 7",
        "Y[m] = sum[n] exp(X[m, n] - R[m]) where n <= m",
    ]
    found = rolls(chain({"m": 8, "n": 8}, {"X": "mn"}, lines))
    assert [type(r) for r in found] == [Roll, Refusal]
    assert "'Y' accumulates outside the domain of 'R'" in found[1].reason  # type: ignore[union-attr]


def test_a_maximum_that_moves_by_a_multiple_of_another_is_repaired_without_a_power() -> None:
    """The other one is kept times log2(e); 2 to the difference overflowed, and so did its log."""
    lines = ["Y[h, n] = sum[m] X[h, m] * W[m, n]", "R[h] = max[n] Y[h, n]",
             "Z[h] = max[n] exp(Y[h, n] - R[h]) * Y[h, n]",
             "T[h] = max[n] (Y[h, n] - R[h]) * (-0.75)"]  # fmt: skip
    c = chain({"h": 4, "n": 8, "m": 2}, {"X": "hm", "W": "mn"}, lines, outputs=["Z", "T"])
    ready = program(c)
    (rolled,) = (e for e in tilings(ready.chain) if str(e) == "hnm")
    schedule = Plan(ready, rolled, frozenset()).schedule({"h": 1, "n": 1, "m": 1})
    assert "T = repair" in str(schedule)
    x = {n: a * 1000.0 for n, a in inputs(c).items()}
    np.testing.assert_allclose(interpret(schedule, x)[0]["T"], evaluate(c, x)["T"])
