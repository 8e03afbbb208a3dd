"""Hoisting factors out of sums."""

from __future__ import annotations

import numpy as np
import pytest
from chains import LINES, chain, extents, inputs, named
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.hoist import hoist
from mcfuser.chain import Chain, products
from mcfuser.space.reference import evaluate

AXES = {"m": 4, "n": 6, "h": 3}


def same(c: Chain, seed: int = 0) -> Chain:
    """The hoisted chain, once it has been seen to compute what the chain does."""
    moved = hoist(c)
    x = inputs(c, seed)
    expected, found = evaluate(c, x), evaluate(moved, x)
    for o in c.outputs:
        np.testing.assert_allclose(found[o], expected[o], rtol=1e-9, atol=1e-12)
    return moved


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LINES)), extents(8), st.integers(0, 99))
def test_hoisting_changes_no_result_and_hoists_once(name, sizes, seed) -> None:
    moved = same(named(name, sizes), seed)
    assert hoist(moved) == moved


# A summand is any product of what varies and of scales that wait for a reduction, in any order.
VARYING = ["X[m, n]", "V[n, h]", "exp(X[m, n])"]
SCALES = ["{} / Z[m]", "{} * Z[m]", "Z[m] * ({})", "({}) * sqrt(Z[m] + 1.0)", "{} / (Z[m] * 2.0)",
          "float32({})"]  # fmt: skip


@st.composite
def summand(draw: st.DrawFn) -> str:
    words = [draw(st.sampled_from(VARYING)) for _ in range(draw(st.integers(1, 3)))]
    scaled = [draw(st.sampled_from(SCALES)).format(w) if draw(st.booleans()) else w for w in words]
    while len(scaled) > 1:
        i = draw(st.integers(0, len(scaled) - 2))
        scaled[i : i + 2] = [f"({scaled[i]}) * ({scaled[i + 1]})"]
    return draw(st.sampled_from(SCALES)).format(f"({scaled[0]})")


@settings(max_examples=150, deadline=None)
@given(summand(), st.booleans(), st.integers(0, 99))
def test_scales_leave_the_sum_however_they_are_written(body, through_a_map, seed) -> None:
    first = "Z[m] = sum[n] X[m, n] * X[m, n]"
    if through_a_map:
        rest = [f"W[m, h, n] = {body}", "O[m, h] = sum[n] W[m, h, n] * V[n, h]"]
    else:
        rest = [f"O[m, h] = sum[n] ({body}) * V[n, h]"]
    c = chain(AXES, {"X": "mn", "V": "nh"}, [first, *rest])
    moved = same(c, seed)
    assert dependences(moved) == ()
    assert moved.outputs == c.outputs


def test_a_softmax_in_place_becomes_a_product_of_probabilities_then_a_division() -> None:
    moved = same(named("softmax_in_place", dict.fromkeys("mnkh", 5)))
    assert [str(o) for o in moved.operators[-2:]] == [
        "O_sum[m, h] = sum[n] P[m, n] * V[n, h]",
        "O[m, h] = O_sum[m, h] / Z[m]",
    ]
    assert "W" not in [o.out for o in moved.operators]


def test_a_norm_before_a_product_stays_a_product() -> None:
    moved = same(named("rms_norm_projection", dict.fromkeys("mnk", 5)))
    assert [o.out for o in products(moved)] == ["C_sum"]
    assert str(moved.operator("Y_part")) == "Y_part[m, k] = X[m, k] * g[k]"


@pytest.mark.parametrize(
    "guarded",
    ["select(Z[m] == 0.0, 0.0, {})", "select(Z[m] != 0.0, {}, 0.0)"],
)
def test_a_condition_for_empty_rows_moves_too(guarded: str) -> None:
    c = chain(AXES, {"X": "mn", "V": "nh"}, [
        "Z[m] = sum[n] X[m, n]",
        "W[m, n] = " + guarded.format("X[m, n] / Z[m]"),
        "O[m, h] = sum[n] W[m, n] * V[n, h]",
    ])  # fmt: skip
    moved = same(c)
    assert dependences(moved) == ()
    assert str(moved.operators[-1]) == "O[m, h] = " + guarded.format("O_sum[m, h] / Z[m]")


@pytest.mark.parametrize("name", ["gemm", "mlp", "attention", "log_sum_exp", "three_products"])
def test_a_chain_with_nothing_to_move_comes_back(name: str) -> None:
    c = named(name, dict.fromkeys("bmnkhpc", 4))
    assert hoist(c) is c


@pytest.mark.parametrize(
    "body",
    ["(X[m, n] - Z[m]) * V[n, h]", "exp(X[m, n] - Z[m]) * V[n, h]", "Z[m] / (1.0 + V[n, h])"],
)
def test_what_is_no_factor_stays(body: str) -> None:
    lines = ["Z[m] = sum[n] X[m, n]", f"O[m, h] = sum[n] {body}"]
    c = chain(AXES, {"X": "mn", "V": "nh"}, lines)
    assert hoist(c) == c


def test_a_factor_does_not_leave_a_maximum() -> None:
    lines = ["Z[m] = sum[n] X[m, n]", "O[m] = max[n] X[m, n] * Z[m]"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert hoist(c) == c  # a negative factor would turn it into a minimum


def test_new_names_are_fresh() -> None:
    lines = ["Z[m] = sum[n] X[m, n]", "O_sum[m] = max[n] X[m, n]",
             "O[m] = sum[n] X[m, n] / Z[m] + 0.0 * O_sum[m]", "Y[m] = sum[n] X[m, n] / Z[m]",
             "Y_sum[m] = Y[m] + O[m] + O_sum[m]"]  # fmt: skip
    moved = same(chain(AXES, {"X": "mn"}, lines))
    assert "Y_sum_" in [o.out for o in moved.operators]


def test_a_norm_that_others_read_as_well_keeps_its_map() -> None:
    lines = [
        "Z[m] = sum[n] X[m, n]",
        "W[m, n] = X[m, n] / Z[m]",
        "O[m, h] = sum[n] W[m, n] * V[n, h]",
    ]
    moved = same(chain(AXES, {"X": "mn", "V": "nh"}, lines, outputs=["W", "O"]))
    assert "W" in [o.out for o in moved.operators]


def test_a_map_that_only_a_domain_reads_is_not_dead() -> None:
    lines = ["T[m, n] = X[m, n] * 2.0", "Q[m] = sum[n] X[m, n]", "Z[m] = sum[n] X[m, n] * Q[m]",
             "W[m] = sum[n] Z[m] + X[m, n] where T[m, n] < 1.0"]  # fmt: skip
    c = chain(AXES, {"X": "mn"}, lines)
    x = inputs(c)
    np.testing.assert_allclose(evaluate(hoist(c), x)["W"], evaluate(c, x)["W"])
