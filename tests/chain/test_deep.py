"""Weights that lie along the depth of their product: the same sums of the same elements."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import (
    Chain,
    from_json,
    subchain,
    to_json,
    under_names,
    with_depth_last,
    with_precision,
)
from mcfuser.errors import ChainError
from mcfuser.space.reference import evaluate

SIZES = {"m": 5, "n": 6, "k": 4, "h": 3, "s": 2}


def chain(lines: list[str], dtype: str = "float32", constant: str = "BD", **of: str) -> Chain:
    """Inputs by the axes of their dimensions; a dimension of 8 elements is called x."""
    shapes = {t: [8 if a == "x" else a for a in axes] for t, axes in of.items()}
    return from_json({
        "axes": {a: n for a, n in SIZES.items() if any(a in line for line in lines)},
        "tensors": {
            t: {"shape": shape, "dtype": dtype, "constant": t in constant}
            for t, shape in shapes.items()
        },
        "operators": lines,
    })  # fmt: skip


TWO = ["C[m, n] = sum[k] A[m, k] * B[k, n]", "E[m, h] = sum[n] C[m, n] * D[n, h]"]
WINDOWS = ["C[m, n] = sum[k, s] A[k, m + s] * B[k, s, n]"]


@pytest.mark.parametrize(
    ("given", "orders", "after"),
    [
        (chain(TWO, A="mk", B="kn", D="nh"), {"B": (1, 0), "D": (1, 0)}, {"B": "nk", "D": "hn"}),
        (chain(WINDOWS, A="kx", B="ksn"), {"B": (1, 2, 0)}, {"B": "snk"}),
    ],
    ids=["two products", "windows"],
)
def test_the_longest_axis_of_the_depth_comes_last(
    given: Chain, orders: dict[str, tuple[int, ...]], after: dict[str, str]
) -> None:
    made, found = with_depth_last(given)
    assert found == orders
    assert {t: "".join(map(str, made.tensor(t).shape)) for t in orders} == after
    rng = np.random.default_rng(0)
    arrays = {t: rng.standard_normal(given.shape(t)) for t in given.inputs}
    turned = {t: a.transpose(orders[t]) if t in orders else a for t, a in arrays.items()}
    expected, results = evaluate(given, arrays), evaluate(made, turned)
    for out in given.outputs:
        np.testing.assert_allclose(results[out], expected[out], rtol=1e-12)
    assert with_depth_last(made) == (made, {})


@pytest.mark.parametrize(
    "given",
    [
        chain(TWO[:1], A="mk", B="kn", constant=""),
        chain(TWO[:1], "float16", A="mk", B="kn"),
        chain(["C[m, n] = sum[k] A[m, k] * B[n, k]"], A="mk", B="nk"),
        chain([*TWO[:1], "E[k, n] = B[k, n] * 2.0"], A="mk", B="kn"),
        chain(["C[n, m] = sum[k] B[k, n] * A[m, k]"], A="mk", B="kn"),
        chain(["C[m, n] = sum[k, s] A[m, k] * B[k + s, n]"], A="mk", B="xn"),
        chain(["C[m] = sum[k] A[m, k] * B[k]"], A="mk", B="k"),
    ],
    ids=["data", "float16", "already", "read twice", "left", "windows of weights", "a vector"],
)
def test_what_is_no_weight_of_one_product_stays(given: Chain) -> None:
    assert with_depth_last(given) == (given, {})


def test_a_precision_is_of_chains_with_products_of_float32() -> None:
    wide, half = chain(TWO, A="mk", B="kn", D="nh"), chain(TWO[:1], "float16", A="mk", B="kn")
    assert with_precision(wide, "tf32").precision == "tf32"
    assert with_precision(half, "tf32") == half
    maps = chain(["C[m, n] = A[m, n] + 1.0"], A="mn")
    assert with_precision(maps, "tf32") == maps


def test_a_part_of_a_chain_has_its_precision_if_it_multiplies() -> None:
    lines = ["C[m, n] = sum[k] A[m, k] * B[k, n]", "R[m] = max[n] C[m, n]", "E[m] = R[m] + 1.0"]
    whole = with_precision(chain(lines, A="mk", B="kn"), "tf32")
    assert subchain(whole, ["C"], "product").precision == "tf32"
    assert subchain(whole, ["R", "E"], "rest").precision == "float32"
    assert under_names(whole, "w", list("pqrs"), list("XYZUV")).precision == "tf32"
    assert from_json(to_json(whole)) == whole and from_json(to_json(whole)).key == whole.key
    assert whole.key != with_precision(whole, "float32").key
    with pytest.raises(ChainError, match="has precision 'fp8'; use float32 or tf32"):
        from_json({**to_json(whole), "precision": "fp8"})
