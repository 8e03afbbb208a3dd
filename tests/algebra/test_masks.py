"""Masks taken once: where a domain goes, what needs no mask then, and that nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.algebra.exponent import LOG2E, base_two
from mcfuser.algebra.masks import masked_once
from mcfuser.chain import LOWEST, Chain, Operator, from_json
from mcfuser.expr import parse
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.chains import chain
from tests.support.softmaxes import SHAPES, bodies, same, softmax, values


def test_a_domain_along_an_axis_that_the_scores_lack_stays_where_it_is() -> None:
    """Rows of several lengths share their scores, which cannot hold the lowest number for each."""
    inside = " where n <= m + b"
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", f"R[b, m] = max[n] S[m, n] * 0.5{inside}",
             "P[b, m, n] = exp(S[m, n] * 0.5 - R[b, m])", f"Z[b, m] = sum[n] P[b, m, n]{inside}",
             f"U[b, m, h] = sum[n] P[b, m, n] * V[n, h]{inside}",
             "O[b, m, h] = U[b, m, h] / Z[b, m]"]  # fmt: skip
    c = chain({"b": 2, "m": 6, "n": 8, "k": 4, "h": 3}, SHAPES, lines)
    ready = program(c)
    assert not ready.unmasked
    same(c, ready.chain)


def test_masks_are_taken_once() -> None:
    c = base_two(softmax("S[m, n] * 0.125", "n <= m"))
    found, unmasked = masked_once(c)
    assert unmasked == {"R", "Z", "U"}
    assert bodies(found)["S_inside"] == f"select(n <= m, S[m, n], {LOWEST!r})"
    assert [o.out for o in found.operators][:3] == ["S", "S_inside", "R"]
    least = 0.5 * LOWEST * (0.125 * LOG2E)
    assert bodies(found)["P"].endswith(f" - select(R[m] <= {least!r}, 0.0, R[m]))")
    same(c, found)


@pytest.mark.parametrize(
    "c",
    [
        softmax("S[m, n] * 0.125"),
        softmax("S[m, n] * 0.125 + M[m, n]", "n <= m"),
        softmax("S[m, n] * 0.125", "n <= m", outputs=("O", "P")),
        softmax("S[m, n] * 0.125", "n <= m", "T[m] = sum[n] P[m, n]", outputs=("O", "T")),
        softmax("S[m, n] * 0.125", "n <= m", "T[m] = sum[n] P[m, n] + 1.0 where n <= m",
                outputs=("O", "T")),
        softmax("S[m, n] * 0.125", "n <= m", "T[m] = max[n] P[m, n] where n <= m",
                outputs=("O", "T")),
        softmax("S[m, n] * 0.125", "n <= m", "T[m] = sum[n] P[m, n] * log(P[m, n]) where n <= m",
                outputs=("O", "T")),
    ],
    ids=["no domain", "mask", "weights given away", "wider sum", "not of weights alone", "maximum",
         "entropy"],
)  # fmt: skip
def test_masks_that_others_need_stay(c: Chain) -> None:
    ready = base_two(c)
    assert masked_once(ready) == (ready, frozenset())
    same(c, program(c).chain)


def test_scores_that_are_a_result_are_masked_beside_it() -> None:
    c = softmax("S[m, n] * 0.125", "n <= m", outputs=("O", "S"))
    ready = program(c)
    assert ready.unmasked == {"R", "Z", "U"}
    same(c, ready.chain)


@pytest.mark.parametrize("x", ["S[m, n] * 0.125", "S[m, n] * 3.0", "40.0 * tanh(S[m, n])"])
def test_rows_without_a_position_are_zero(x: str) -> None:
    """The rows' lengths are 0, 1, 16, 17, 40 and 0."""
    c = softmax(x, "n < L[m]")
    ready = program(c)
    assert ready.unmasked == {"R", "Z", "U"}
    found = evaluate(ready.chain, values(c))["O"]
    assert not found[[0, 5]].any() and np.isfinite(found).all()
    same(c, ready.chain)


@pytest.mark.parametrize("d", [56, 104, 224, 296, 304])
def test_a_rounded_multiple_of_the_lowest_number_is_below_what_counts(d: int) -> None:
    """In float32 the product of the lowest number and a scale may round to above their product."""
    ready = program(softmax(f"S[m, n] * {d**-0.5!r}", "n < L[m]")).chain
    factor = np.float32(d**-0.5 * LOG2E)
    weights = bodies(ready)["P"]
    threshold = float(weights.partition("<= ")[2].partition(",")[0])
    assert np.float32(LOWEST) * factor <= np.float32(threshold)


def test_a_domain_may_read_what_is_computed_after_the_scores() -> None:
    c = from_json({
        "axes": {"m": 6, "n": 40, "k": 8, "h": 8},
        "tensors": {t: {"shape": list(SHAPES[t])} for t in "QKV"} | {"g": {"shape": ["n"]}},
        "operators": [
            "S[m, n] = sum[k] Q[m, k] * K[n, k]", "T[m] = max[k] Q[m, k]",
            "R[m] = max[n] S[m, n] where T[m] < g[n]", "P[m, n] = exp(S[m, n] - R[m])",
            "Z[m] = sum[n] P[m, n] where T[m] < g[n]",
            "O[m, h] = sum[n] P[m, n] * V[n, h] where T[m] < g[n]",
        ],
        "outputs": ["O", "Z"],
    })  # fmt: skip
    assert program(c).unmasked
    same(c, program(c).chain)


def spelt(weight: str, top: str = "S[m, n]", *more: str, outputs: tuple[str, ...] = ()) -> Chain:
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"R[m] = max[n] {top} where n <= m",
        f"P[m, n] = {weight}",
        "Z[m] = sum[n] P[m, n] where n <= m",
        "U[m, h] = sum[n] P[m, n] * V[n, h] where n <= m",
        "O[m, h] = U[m, h] / Z[m]",
        *more,
    ]
    return chain({"m": 6, "n": 40, "k": 8, "h": 8}, SHAPES, lines, outputs)


@pytest.mark.parametrize(
    ("weight", "top"),
    [
        ("exp2(S[m, n] - R[m])", "S[m, n]"),
        ("exp2(S[m, n] * 0.3 - R[m])", "S[m, n] * 0.3"),
        ("exp(-(R[m] - S[m, n]))", "S[m, n]"),
        ("exp(1.0 * (S[m, n] - R[m]))", "S[m, n]"),
        ("exp(0.125 * (S[m, n] - R[m]))", "S[m, n]"),
        ("exp((S[m, n] - R[m]) / 8.0)", "S[m, n]"),
        ("exp(S[m, n] - R[m]) * exp(S[m, n] - R[m])", "S[m, n]"),
    ],
)
def test_every_spelling_of_an_exponential_is_masked_once(weight: str, top: str) -> None:
    c = spelt(weight, top)
    ready = program(c)
    assert ready.unmasked == {"R", "Z", "U"}
    assert [o.out for o in ready.chain.operators][1] == "S_inside"
    same(c, ready.chain)


@pytest.mark.parametrize("weight", ["exp(-(R[m] - S[m, n]))", "exp(1.0 * (S[m, n] - R[m]))"])
def test_a_spelling_that_says_the_same_is_the_same_program(weight: str) -> None:
    assert program(spelt(weight)) == program(spelt("exp(S[m, n] - R[m])"))


def test_a_maximum_that_is_not_subtracted_is_masked_with_the_sums() -> None:
    c = spelt("exp(S[m, n] * 0.1)", outputs=("O", "R"))
    ready = program(c)
    assert ready.unmasked == {"R", "Z", "U"}
    assert bodies(ready.chain)["P"] == "exp(S_inside[m, n] * 0.1)"
    same(c, ready.chain)


def test_a_maximum_that_is_read_elsewhere_is_quite_the_lowest_number() -> None:
    """Of a row without a position: a multiple of the lowest number is not it, and a result shows
    that; the lowest number itself may be seen."""
    inside = {"exact": "S[m, n]", "multiple": "S[m, n] * 0.5"}
    for name, top in inside.items():
        c = spelt(f"exp2({top} - R[m])", top, "E[m] = R[m] + log(Z[m] + 1.0)", outputs=("O", "E"))
        narrow = replace(c, operators=tuple(_narrow(o) for o in c.operators))
        ready = program(narrow)
        assert bool(ready.unmasked) == (name == "exact")
        same(narrow, ready.chain)


def _narrow(o: Operator) -> Operator:
    """The operator whose domain is empty in rows 0 to 2."""
    return replace(o, domain=parse("n < m - 2")) if o.domain is not None else o


def test_sums_share_a_zero() -> None:
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "A[m] = sum[n] S[m, n] where n <= m",
             "B[m] = sum[n] S[m, n] * S[m, n] where n <= m"]  # fmt: skip
    c = chain({"m": 6, "n": 40, "k": 8}, SHAPES, lines, ("A", "B"))
    ready = program(c)
    assert ready.unmasked == {"A", "B"}
    assert bodies(ready.chain)["S_inside"] == "select(n <= m, S[m, n], 0.0)"
    same(c, ready.chain)


@pytest.mark.parametrize(
    "more",
    ["T[m] = sum[n] S[m, n] * S[m, n] where n <= m", "T[m] = sum[n] S[m, n] where n < m",
     "T[m] = sum[n] S[m, n]"],
    ids=["a square of the lowest number", "another domain", "no domain"],
)  # fmt: skip
def test_what_would_see_the_number_keeps_every_mask(more: str) -> None:
    c = spelt("exp(S[m, n] - R[m])", "S[m, n]", more, outputs=("O", "T"))
    assert not program(c).unmasked


def test_a_sum_of_weights_times_scores_is_masked_with_them() -> None:
    """Zero times the lowest number is zero; times twice that it may be no number."""
    line = "T[m] = sum[n] P[m, n] * {} where n <= m"
    c = spelt("exp(S[m, n] - R[m])", "S[m, n]", line.format("S[m, n]"), outputs=("O", "T"))
    assert program(c).unmasked == {"R", "Z", "U", "T"}
    same(c, program(c).chain)
    twice = line.format("(S[m, n] * 2.0)")
    assert not program(spelt("exp(S[m, n] - R[m])", "S[m, n]", twice, outputs=("O", "T"))).unmasked


@pytest.mark.parametrize("top", ["R", "T"])
def test_a_maximum_of_another_domain_may_have_met_nothing(top: str) -> None:
    """Its rows 0 to 2 are empty, where it is the lowest number, as the scores would be outside."""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        "R[m] = max[n] M[m, n] where n < m - 2",
        "T[m] = R[m] * 1.0",
        f"P[m, n] = exp(min(S[m, n] - {top}[m], 0.0))",
        "B[m] = max[n] S[m, n] where n <= m",
        "Z[m] = sum[n] P[m, n] where n <= m",
        "Y[m] = sum[n] P[m, n] * 0.5 where n <= m",
    ]
    c = chain({"m": 6, "n": 40, "k": 8}, SHAPES, lines, ("B", "Z", "Y"))
    ready = program(c)
    assert "S_inside" not in bodies(ready.chain)
    same(c, ready.chain)


def test_scores_that_an_empty_row_is_added_to_may_be_the_lowest_number() -> None:
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        "T[m] = max[n] S[m, n] where n < m - 2",
        "X[m, n] = S[m, n] * 0.0 + T[m]",
        "R[m] = max[n] X[m, n] where n <= m",
        "P[m, n] = exp(X[m, n] - R[m])",
        "Z[m] = sum[n] P[m, n] where n <= m",
    ]
    c = chain({"m": 6, "n": 40, "k": 8}, SHAPES, lines, ("Z",))
    ready = program(c)
    assert not ready.unmasked
    same(c, ready.chain)
    np.testing.assert_allclose(evaluate(ready.chain, values(c))["Z"][:3], [1, 2, 3])


@pytest.mark.parametrize(
    ("dtype", "held"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")]
)
def test_a_masked_source_is_held_in_float32_unless_it_is_wider(dtype: str, held: str) -> None:
    c = base_two(softmax("S[m, n] * 0.125", "n <= m"))
    typed = tuple(replace(t, dtype=dtype) if t.name == "S" else t for t in c.tensors)
    masked, _ = masked_once(replace(c, tensors=typed))
    assert masked.tensor("S_inside").dtype == held


@pytest.mark.parametrize(("shifted", "once"), [("R[m] * 0.5", True), ("R[m] + 1.0", False)])
def test_a_map_of_a_maximum_may_have_met_nothing_either(shifted: str, once: bool) -> None:
    """Of an empty row the lowest number plus 1 is the lowest number, and its weights would be 1;
    less half of it, a score is still low enough."""
    inside = " where n < L[m]"
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", f"R[m] = max[n] S[m, n]{inside}",
             f"T[m] = {shifted}", "P[m, n] = exp(S[m, n] - T[m])",
             f"Z[m] = sum[n] P[m, n]{inside}",
             f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}"]  # fmt: skip
    shapes = {t: SHAPES[t] for t in "QKVL"}
    c = chain({"m": 6, "n": 40, "k": 8, "h": 8}, shapes, lines, ["Z", "U"])
    found, unmasked = masked_once(c)
    assert unmasked == ({"R", "Z", "U"} if once else set())
    same(c, found)
