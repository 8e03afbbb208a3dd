"""Exponentials to base two: what is rewritten, and that nothing changes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mcfuser.algebra.exponent import LOG2E, base_two
from mcfuser.algebra.quotient import guarded
from mcfuser.chain import LOWEST, Chain, attention
from mcfuser.expr import Call, walk
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.chains import chain
from tests.support.softmaxes import SHAPES, bodies, same, softmax, values


def calls(c: Chain) -> set[str]:
    return {e.op for o in c.operators for e in walk(o.body) if isinstance(e, Call)}


def test_a_scale_joins_the_factor() -> None:
    c = softmax("S[m, n] * 0.125")
    found = base_two(c)
    factor = repr(0.125 * LOG2E)
    assert [o.out for o in found.operators] == ["S", "R", "P", "Z", "U", "O"]
    assert bodies(found)["R"] == f"max[n] S[m, n] * {factor}"
    assert bodies(found)["P"] == f"exp2(S[m, n] * {factor} - R[m])"
    same(c, found)


@pytest.mark.parametrize(
    ("x", "scores"),
    [
        ("S[m, n] / 8.0", "S[m, n] * 0.18"),
        ("0.5 * S[m, n]", "S[m, n] * 0.72"),
        ("S[m, n] * 0.5 * 0.25", "S[m, n] * 0.18"),
        ("S[m, n]", "S[m, n] * 1.44"),
        ("50.0 * tanh(S[m, n] / 50.0)", "X[m, n] * 72.1"),
        ("S[m, n] * 0.125 - a[m] * (m - n)", "X[m, n] * 1.44"),
        ("S[m, n] * -0.125", "X[m, n] * 1.44"),
    ],
)
def test_other_scores(x: str, scores: str) -> None:
    c = softmax(x, "n <= m")
    found = base_two(c)
    assert bodies(found)["P"].startswith(f"exp2({scores}")
    assert bodies(found)["R"].startswith(f"max[n] {scores}")
    assert "exp" not in calls(found)
    same(c, found)
    same(c, program(c).chain)


def test_what_reads_the_maximum_reads_it_back_to_base_e() -> None:
    c = softmax("S[m, n] * 0.125", "", "E[m] = log(Z[m]) + R[m]", outputs=("O", "E"))
    found = base_two(c)
    assert bodies(found)["E"] == f"log(Z[m]) + R[m] * {1 / LOG2E!r}"
    same(c, found)


def test_a_map_that_others_read_keeps_its_factor() -> None:
    c = softmax("S[m, n] * 0.125", "", "T[m, n] = X[m, n] + 1.0", outputs=("O", "T"))
    found = base_two(c)
    assert bodies(found)["X"] == "S[m, n] * 0.125"
    assert bodies(found)["P"].startswith("exp2(X[m, n] * 1.44")
    same(c, found)


@pytest.mark.parametrize(
    "c",
    [
        softmax("S[m, n] * 0.125 + M[m, n]"),  # a mask may hold the lowest number already
        softmax("S[m, n] * 0.125 + a[m]"),
        softmax("max(S[m, n], -a[m]) * 0.125"),
        softmax("select(n < L[m], S[m, n] * 0.125, -3.4028234663852886e38)"),
        softmax("S[m, n] * 0.125 + select(n < L[m], 0.0, -3.4e38)"),
        softmax("S[m, n] * 0.125", outputs=("O", "R")),
        softmax("S[m, n] * 0.125", "n < L[m]", "E[m] = R[m] + 1.0", outputs=("O", "E")),
    ],
    ids=["mask", "row", "maximum", "selected", "added", "given away", "read of empty rows"],
)  # fmt: skip
def test_what_stays_to_base_e(c: Chain) -> None:
    assert base_two(c) == c


def test_a_maximum_in_whole_numbers_stays_to_base_e() -> None:
    """Taken to base two, it would be rounded elsewhere."""
    c = softmax("S[m, n] * 0.125")
    tensors = tuple(replace(t, dtype="int32") if t.name == "R" else t for t in c.tensors)
    whole = replace(c, tensors=tensors)
    assert base_two(whole) == whole


@pytest.mark.parametrize(
    "exponential",
    ["exp(X[m, n] - R[m])", "exp2(X[m, n] * 0.5 - R[m])"],
    ids=["to base e", "to base two as written"],
)
@pytest.mark.parametrize("scores", ["M[m, n] * a[m]", "S[m, n] * 0.125 + M[m, n]"])
def test_a_row_of_nothing_but_the_lowest_number_is_the_mean_of_its_values(
    exponential: str, scores: str
) -> None:
    """A mask may put it there; the row is not empty for that, and its weights are all alike."""
    inside = " where n <= m"
    top = "X[m, n] * 0.5" if "0.5" in exponential else "X[m, n]"
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", f"X[m, n] = {scores}",
             f"R[m] = max[n] {top}{inside}", f"P[m, n] = {exponential}",
             f"Z[m] = sum[n] P[m, n]{inside}", f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}",
             "O[m, h] = U[m, h] / Z[m]"]  # fmt: skip
    lines = lines[0 if "S[" in scores else 1 :]
    c = chain({"m": 6, "n": 8, "k": 4, "h": 3}, SHAPES, lines)
    x = values(c)
    x["M"][4], x["a"] = LOWEST, np.ones(6)
    found = evaluate(program(c).chain, x)["O"]
    np.testing.assert_allclose(found[4], x["V"][:5].mean(axis=0))
    np.testing.assert_allclose(found, evaluate(c, x)["O"], rtol=1e-12)


def test_a_repair_is_to_base_two() -> None:
    (first, *_) = program(attention(1, 16, 16, 16, 16)).rolls
    assert math.isclose(LOG2E, 1 / math.log(2))
    assert "exp2" in {e.op for e in walk(first.h) if isinstance(e, Call)}  # type: ignore[union-attr]


def test_what_a_maximum_is_joined_with_is_taken_to_base_two_as_well() -> None:
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        "R[m] = max[n] max(S[m, n] * 0.125, a[m] * 2.0)",
        "P[m, n] = exp(S[m, n] * 0.125 - R[m])",
        "U[m] = sum[n] P[m, n]",
    ]
    c = chain({"m": 6, "n": 40, "k": 8}, {"Q": "mk", "K": "nk", "a": "m"}, lines)
    found = base_two(c)
    assert calls(found) >= {"exp2"} and "exp" not in calls(found)
    assert bodies(found)["R"].endswith(f", a[m] * 2.0 * {LOG2E!r})")
    same(c, found)


@pytest.mark.parametrize(
    "line", ["T[m, n] = select(X[m, n] - R[m] < -2.0, 0.0, 1.0)", "T[m, n] = floor(R[m]) + X[m, n]"]
)
def test_a_maximum_that_is_compared_is_not_rounded_otherwise(line: str) -> None:
    c = softmax("S[m, n] * 0.125", "", line, outputs=("O", "T"))
    assert base_two(c) == c


@pytest.mark.parametrize("inside", ["", " where n <= m"])
def test_weights_that_are_divided_before_their_product(inside: str) -> None:
    """As a front end writes a softmax. Its quotients are guarded: 0 where a weight is."""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]", "X[m, n] = S[m, n] * 0.125",
        f"R[m] = max[n] X[m, n]{inside}", "P[m, n] = exp(X[m, n] - R[m])",
        f"Z[m] = sum[n] P[m, n]{inside}", "W[m, n] = P[m, n] / Z[m]",
        f"O[m, h] = sum[n] W[m, n] * V[n, h]{inside}",
    ]  # fmt: skip
    c = guarded(chain({"m": 6, "n": 8, "k": 4, "h": 3}, SHAPES, lines))
    found = base_two(c)
    assert calls(found) >= {"exp2"} and "exp" not in calls(found)
    same(c, found)


def test_a_sink_above_the_maximum_of_rows_that_may_be_empty() -> None:
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]", "R[m] = max[n] S[m, n] where n < m",
        "P[m, n] = exp(S[m, n] - R[m])", "Z[m] = sum[n] P[m, n] where n < m",
        "W[m, n] = P[m, n] / (Z[m] + exp(a[m] - R[m]))",
        "O[m, h] = sum[n] W[m, n] * V[n, h] where n < m",
    ]  # fmt: skip
    c = guarded(chain({"m": 6, "n": 8, "k": 4, "h": 3}, {**SHAPES, "a": "m"}, lines))
    found = base_two(c)
    assert "exp2" in calls(found)
    x = values(c)
    for number in (0.0, -30.0, 40.0, LOWEST):
        x["a"] = np.full(6, number)
        with np.errstate(over="ignore"):
            one, *others = (evaluate(each, x)["O"] for each in (c, found, program(c).chain))
        for other in others:
            np.testing.assert_allclose(one, other, rtol=1e-6)
        assert not one[0].any()
    assert len(program(c).unmasked) == 3  # scores are masked once


def test_scores_that_no_map_computes_get_a_factor() -> None:
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        "R[m] = max[n] tanh(S[m, n]) * 0.5",
        "P[m, n] = exp(tanh(S[m, n]) * 0.5 - R[m])",
    ]
    c = chain({"m": 6, "n": 40, "k": 8}, {"Q": "mk", "K": "nk"}, lines, ("P",))
    found = base_two(c)
    assert bodies(found)["P"] == f"exp2(tanh(S[m, n]) * {0.5 * LOG2E!r} - R[m])"
    same(c, found)
