"""Hoisting factors out of sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.hoist import hoist, shifted
from mcfuser.algebra.pivot import centred
from mcfuser.chain import Chain, fixed, products
from mcfuser.expr import reads
from mcfuser.space.reference import evaluate
from tests.support.chains import LINES, chain, extents, inputs, named

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


@settings(max_examples=60, deadline=None)
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
    [
        "exp(X[m, n] - Z[m]) * V[n, h]",
        "V[n, h] / (X[m, n] + Z[m])",
        "tanh(X[m, n] * Z[m])",
        "(exp(X[m, n] - Z[m]) - Z[m]) * V[n, h]",
    ],
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
             "O[m] = sum[n] X[m, n] / Z[m] + 0.0 * O_sum[m]", "Y[m] = sum[n] exp(X[m, n]) / Z[m]",
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


# --- shifts ---------------------------------------------------------------------------------

PARTS = ["X[m, n]", "V[n, h]", "Z[m]", "1.5", "X[m, n] * w[m]", "tanh(V[n, h])", "R[m]", "n",
         "select(n < 3, X[m, n], Z[m])", "X[m, n] / (V[n, h] * V[n, h] + 1.0)"]  # fmt: skip
JOINS = ["({}) + ({})", "({}) - ({})", "({}) * ({})", "-({}) + {}", "({}) * 0.5 - ({})"]


@st.composite
def polynomial(draw: st.DrawFn) -> str:
    """A sum of products of what varies and what waits, in any nesting."""
    words = [draw(st.sampled_from(PARTS)) for _ in range(draw(st.integers(2, 5)))]
    while len(words) > 1:
        i = draw(st.integers(0, len(words) - 2))
        words[i : i + 2] = [draw(st.sampled_from(JOINS)).format(*words[i : i + 2])]
    return words[0]


@settings(max_examples=60, deadline=None)
@given(polynomial(), st.booleans(), st.integers(0, 99))
def test_sums_of_terms_leave_the_sum_and_change_nothing(body, through_a_map, seed) -> None:
    lines = ["Z[m] = sum[n] exp(X[m, n])", "R[m] = max[n] X[m, n]"]
    if through_a_map:
        lines += [f"W[m, h, n] = {body}", "O[m, h] = sum[n] W[m, h, n] * V[n, h] + n"]
    else:
        lines += [f"O[m, h] = sum[n] {body} + n"]
    c = chain(AXES, {"X": "mn", "V": "nh", "w": "m"}, lines)
    moved = same(c, seed)
    assert not [d for d in dependences(moved) if d.target.startswith("O")]


def test_a_shift_past_a_product_costs_a_column_sum() -> None:
    lines = ["Z[m] = max[n] X[m, n]", "O[m, h] = sum[n] (X[m, n] - Z[m]) * V[n, h]"]
    moved = same(chain(AXES, {"X": "mn", "V": "nh"}, lines))
    assert dependences(moved) == ()
    assert [o.out for o in products(moved) if len(o.axes) == 2] == ["O_sum"]
    assert any(o.axes == ("h",) and str(o).endswith("sum[n] V[n, h]") for o in moved.operators)


def test_what_is_taken_away_stands_after_what_is_added() -> None:
    squares = "(X[m, n] - A[m]) * (X[m, n] - A[m])"
    lines = ["A[m] = sum[n] X[m, n] / 6.0", f"Q[m] = sum[n] -({squares})"]
    last = same(chain(AXES, {"X": "mn"}, lines)).operators[-1]
    assert str(last) == f"Q[m] = A_shift[m] * A_shift[m] * {1 / 6!r} - Q_sum[m]"


def test_a_variance_from_its_definition_is_one_pass_of_two_sums() -> None:
    lines = ["A[m] = sum[n] X[m, n] / 6.0", "Q[m] = sum[n] (X[m, n] - A[m]) * (X[m, n] - A[m])"]
    moved = same(chain(AXES, {"X": "mn"}, lines))
    assert [str(o) for o in moved.operators] == [
        "X_shift[m, n] = X[m, n] - X[m, 0]",
        "A_shift[m] = sum[n] X_shift[m, n]",
        "Q_sum[m] = sum[n] X_shift[m, n] * X_shift[m, n]",
        f"Q[m] = Q_sum[m] - A_shift[m] * A_shift[m] * {1 / 6!r}",
    ]
    assert shifted(chain(AXES, {"X": "mn"}, lines)) == ("X",)


def test_equal_sums_and_maps_are_made_once() -> None:
    moved = same(named_swiglu())
    assert sum("_part" in o.out for o in moved.operators) == 1
    assert dependences(moved) == ()


def named_swiglu() -> Chain:
    lines = [
        "Q[m] = sum[k] X[m, k] * X[m, k]",
        "N[m, k] = X[m, k] / sqrt(Q[m] + 0.5) * g[k]",
        "G[m, n] = sum[k] N[m, k] * W[k, n]",
        "U[m, n] = sum[k] N[m, k] * B[k, n]",
        "S[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]",
    ]
    return chain({"m": 4, "n": 6, "k": 5}, {"X": "mk", "W": "kn", "B": "kn", "g": "k"}, lines)


def test_factors_alone_leave_shifts_where_they_are() -> None:
    lines = ["A[m] = sum[n] X[m, n] / 6.0", "O[m] = sum[n] X[m, n] - A[m]"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert hoist(c, shifts=False) == c
    assert shifted(named("softmax_in_place", dict.fromkeys("mnkh", 4))) == ()


def test_an_offset_that_no_pivot_takes_out_stays_under_the_sum() -> None:
    """x g - mean g is (x - mean) g, but here x and its mean lie far apart from zero alone."""
    lines = ["A[m] = sum[n] X[m, n] / 6.0",
             "O[m, h] = sum[n] (X[m, n] * w[m] - A[m] * n) * V[n, h]"]  # fmt: skip
    c = chain(AXES, {"X": "mn", "V": "nh", "w": "m"}, lines)
    assert hoist(c) == c


def test_a_shift_of_what_has_to_be_computed_first_has_no_pivot() -> None:
    lines = ["S[m, n] = sum[k] X[m, k] * B[k, n]", "A[m] = sum[n] S[m, n] / 6.0",
             "O[m] = sum[n] (S[m, n] - A[m]) * (S[m, n] - A[m])"]  # fmt: skip
    c = chain({"m": 4, "n": 6, "k": 3}, {"X": "mk", "B": "kn"}, lines)
    assert hoist(c) == c


def test_within_a_domain_factors_leave_and_shifts_stay() -> None:
    lines = ["Z[m] = sum[n] X[m, n] where n <= m", "O[m] = sum[n] X[m, n] / Z[m] where n <= m",
             "T[m] = sum[n] X[m, n] - Z[m] where n <= m"]  # fmt: skip
    moved = same(chain(AXES, {"X": "mn"}, lines, outputs=["O", "T"]))
    assert {d.target for d in dependences(moved)} == {"T"}


def test_the_extent_of_a_constant_may_be_known_at_run_time_only() -> None:
    lines = ["R[m] = max[n] X[m, n]", "O[m] = sum[n] X[m, n] - R[m]"]
    c = chain(AXES | {"n": [1, 6]}, {"X": "mn"}, lines)
    moved = same(c)
    assert dependences(moved) == ()
    assert "O_count[m] = sum[n] 1.0 where 0 <= n" in [str(o) for o in moved.operators]


def test_extents_known_at_run_time_are_counted_along_every_axis() -> None:
    lines = ["R[m] = max[n, k] X[m, n] * Y[m, k]",
             "O[m] = sum[n, k] X[m, n] * Y[m, k] - R[m]"]  # fmt: skip
    axes = AXES | {"n": [1, 6], "k": [1, 3]}
    moved = same(chain(axes, {"X": "mn", "Y": "mk"}, lines))
    counted = "O_count[m] = sum[n, k] 1.0 where 0 <= n and 0 <= k"
    assert counted in [str(o) for o in moved.operators]


def test_a_sum_over_two_axes_of_what_has_one_is_counted_along_the_other() -> None:
    lines = ["Z[m] = max[n] X[m, n]", "O[m] = sum[n, h] X[m, n] * V[n, h] - Z[m] * V[n, h] - Z[m]",
             "T[m] = sum[n, h] X[m, n] - Z[m] + 0.0 * V[n, h]"]  # fmt: skip
    moved = same(chain(AXES, {"X": "mn", "V": "nh"}, lines, outputs=["O", "T"]))
    assert dependences(moved) == ()


# --- what must not leave the sum, or must not be taken for what it resembles -----------------


def test_a_factor_stays_where_the_domain_shields_it() -> None:
    """The row of zeros has no position, so its sum is 0, though the factor is infinite."""
    lines = ["Z[m] = sum[n] X[m, n]", "O[m] = sum[n] X[m, n] * (1.0 / Z[m]) where Z[m] != 0.0"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert hoist(c) == c, "the sum waits for Z all the same, in its domain"
    x = inputs(c)
    x["X"][1] = 0.0
    found = evaluate(hoist(c), x)["O"]
    assert found[1] == 0.0
    np.testing.assert_allclose(found, evaluate(c, x)["O"])


def test_a_sum_of_nothing_is_zero_whatever_a_mask_makes_of_its_factor() -> None:
    """A row of X is minus infinity, and so is its sum Z; O sums nothing in the last rows."""
    lines = ["Z[m] = sum[n] X[m, n]", "O[m] = sum[n] V[n] * Z[m] where m < 3"]
    c = chain(AXES, {"X": "mn", "V": "n"}, lines)
    x = inputs(c)
    x["X"][-1] = -np.inf
    moved = hoist(c)
    assert moved != c
    assert evaluate(moved, x)["O"][-1] == 0.0
    np.testing.assert_allclose(evaluate(moved, x)["O"], evaluate(c, x)["O"])


def test_an_equal_sum_within_a_domain_is_another_sum() -> None:
    lines = ["T[m] = sum[n] X[m, n] where n <= m", "R[m] = max[n] X[m, n]",
             "O[m] = sum[n] X[m, n] / R[m]"]  # fmt: skip
    moved = same(chain(AXES, {"X": "mn"}, lines, outputs=["T", "O"]))
    assert {d.target for d in dependences(moved)} == set()


def test_an_equal_sum_that_is_kept_in_whole_numbers_is_not_read_instead() -> None:
    lines = ["T[m] = sum[n] X[m, n]", "R[m] = max[n] X[m, n]", "O[m] = sum[n] X[m, n] / R[m]"]
    c = chain(AXES, {"X": "mn"}, lines, outputs=["T", "O"])
    assert [r.tensor for r in reads(same(c).operator("O").body)] == ["T", "R"]
    tensors = tuple(replace(t, dtype="int32") if t.name == "T" else t for t in c.tensors)
    moved = hoist(replace(c, tensors=tensors))
    assert [r.tensor for r in reads(moved.operator("O").body)] == ["O_sum", "R"]
    assert moved.tensor("O_sum").dtype == "float32"


def test_a_chain_whose_shifts_all_stay_comes_back() -> None:
    """No map from a pivot is left behind where no sum is the simpler for it."""
    lines = ["A[m] = sum[n] X[m, n] / 6.0", "Y[m, n] = X[m, n] - A[m]"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert hoist(c) is c


def test_a_map_with_a_domain_is_not_taken_apart() -> None:
    lines = ["Z[m] = sum[n] X[m, n]", "W[m, n] = X[m, n] / Z[m] where n <= m",
             "O[m, h] = sum[n] W[m, n] * V[n, h]"]  # fmt: skip
    same(chain(AXES, {"X": "mn", "V": "nh"}, lines))


@pytest.mark.parametrize("power", ["2.0", "3.0", "0.5", "-1.0"])
def test_a_power_is_no_product_but_for_a_square(power: str) -> None:
    lines = ["Z[m] = sum[n] X[m, n] * X[m, n]",
             f"O[m] = sum[n] pow(exp(X[m, n]) / (Z[m] + 1.0), {power})"]  # fmt: skip
    moved = same(chain(AXES, {"X": "mn"}, lines))
    assert (dependences(moved) == ()) == (power == "2.0")


def test_a_divisor_that_is_a_scaled_map_stays() -> None:
    """What is left of the divisor would be a map that the chain does not have."""
    lines = ["Z[m] = sum[n] X[m, n] * X[m, n]", "W[m, n] = exp(X[m, n]) * Z[m]",
             "O[m, h] = sum[n] V[n, h] / W[m, n]"]  # fmt: skip
    same(chain(AXES, {"X": "mn", "V": "nh"}, lines))


def test_a_sum_within_a_domain_is_no_mean() -> None:
    """Its values less the pivot, summed over every position, would be another number."""
    lines = ["A[m] = sum[n] X[m, n] / 6.0 where n <= m",
             "Q[m] = sum[n] (X[m, n] - A[m]) * (X[m, n] - A[m])"]  # fmt: skip
    same(chain(AXES, {"X": "mn"}, lines))


@pytest.mark.parametrize("n", [1, 4, 6])
def test_a_sum_of_as_many_as_are_known_at_run_time_is_no_mean(n: int) -> None:
    """A sixth of the sum is the mean at the upper bound alone."""
    lines = ["A[m] = sum[n] X[m, n] / 6.0", "Q[m] = sum[n] (X[m, n] - A[m]) * (X[m, n] - A[m])"]
    c = chain(AXES | {"n": [1, 6]}, {"X": "mn"}, lines)
    here, moved = fixed(c, {"n": n}), fixed(hoist(c), {"n": n})
    x = inputs(here)
    np.testing.assert_allclose(evaluate(moved, x)["Q"], evaluate(here, x)["Q"])


@pytest.mark.parametrize("extent", [48, 49, 93, 107])
def test_a_mean_is_one_whatever_its_extent(extent: int) -> None:
    """49 * (1 / 49) is not 1 in floating point: nothing of the pivot may be left for that."""
    lines = [f"A[m] = sum[n] X[m, n] * {1 / extent!r}", "D[m, n] = X[m, n] - A[m]",
             "Q[m] = sum[n] D[m, n] * D[m, n]", "Y[m, n] = D[m, n] / sqrt(Q[m] + 0.5)"]  # fmt: skip
    moved = same(chain(AXES | {"n": extent}, {"X": "mn"}, lines))
    assert str(moved.operator("D")) == f"D[m, n] = X_shift[m, n] - A_shift[m] * {1 / extent!r}"


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_the_mean_of_rounded_values_is_not_the_mean_of_the_values(dtype: str) -> None:
    """Their difference does not vanish where the values are large against what they differ by."""
    lines = [f"A[m] = sum[n] {dtype}(X[m, n]) / 6.0", "O[m] = sum[n] X[m, n] - A[m]"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert centred(c) == c
    wide = chain(AXES, {"X": "mn"}, [line.replace(dtype, "float32") for line in lines])
    assert centred(wide) != wide
