"""Products whose weights come to the right: the same elements of the same arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import Chain, from_json, turned
from tests.support.arrays import check_arrays
from tests.support.pictures import convolution as convolution_of


def convolution(positions: int = 49, **changes: object) -> Chain:
    """A product of weights with data of so many positions, a bias and what is added."""
    return from_json({
        "axes": {"m": 24, "n": positions, "k": 32},
        "tensors": {
            "A": {"shape": ["m", "k"], "constant": True},
            "B": {"shape": ["k", "n"]},
            "F": {"shape": ["m"], "constant": True},
            "G": {"shape": ["m", "n"]},
        },
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]",
                      "E[m, n] = C[m, n] + F[m] + G[m, n]"],
        **changes,
    })  # fmt: skip


def same(c: Chain) -> Chain:
    one = turned(c)
    check_arrays(c, one)
    assert turned(one) == one
    return one


def test_weights_come_to_the_right() -> None:
    one = same(convolution())
    assert str(one) == ("C[n, m] = sum[k] A[m, k] * B[k, n]\nE[n, m] = C[n, m] + F[m] + G[m, n]")
    roles = one.operators[0].product
    assert roles is not None and roles.right.tensor == "A" and roles.rows == ("n",)
    assert one.tensor("E").strides == (1, 49) and one.tensor("G").strides is None


def test_two_products_in_a_row() -> None:
    c = from_json({
        "axes": {"m": 49, "n": 24, "k": 32, "h": 16},
        "tensors": {
            "A": {"shape": ["n", "k"], "constant": True},
            "B": {"shape": ["k", "m"]},
            "D": {"shape": ["h", "n"], "constant": True},
        },
        "operators": ["C[n, m] = sum[k] A[n, k] * B[k, m]", "P[n, m] = max(C[n, m], 0.0)",
                      "E[h, m] = sum[n] D[h, n] * P[n, m]"],
    })  # fmt: skip
    one = same(c)
    assert [o.axes for o in one.operators] == [("m", "n"), ("m", "n"), ("m", "h")]
    every = [o.product for o in (one.operators[0], one.operators[2])]
    assert [r.right.tensor for r in every if r is not None] == ["A", "D"]


def test_a_batch_stays_in_front() -> None:
    c = from_json({
        "axes": {"b": 3, "m": 8, "n": 49, "k": 16},
        "tensors": {"A": {"shape": ["b", "m", "k"], "constant": True},
                    "B": {"shape": ["b", "k", "n"]}},
        "operators": ["C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]"],
    })  # fmt: skip
    assert same(c).operators[0].axes == ("b", "n", "m")


def pictures(positions: int = 64, **changes: object) -> Chain:
    """Two products in a row of weights with several pictures, whose positions lie side by side."""
    return from_json({
        "axes": {"b": 3, "m": 24, "n": positions, "k": 16, "h": 8},
        "tensors": {
            "A": {"shape": ["m", "k"], "constant": True},
            "B": {"shape": ["b", "k", "n"]},
            "D": {"shape": ["h", "m"], "constant": True},
        },
        "operators": ["C[b, m, n] = sum[k] A[m, k] * B[b, k, n]",
                      "P[b, m, n] = max(C[b, m, n], 0.0)",
                      "E[b, h, n] = sum[m] D[h, m] * P[b, m, n]"],
        **changes,
    })  # fmt: skip


@pytest.mark.parametrize("pictures", [1, 3])
def test_positions_of_windows_stay_rows(pictures: int) -> None:
    """Winograd's algorithm has them so."""
    chain = convolution_of(64, 64, 8, channels=4, pictures=pictures)
    assert turned(chain) is chain
    stored = [replace(t, strides=(64 * 64 * 8, 64 * 64 * 8, 64, 1, 64 * 64))
              if t.name in chain.outputs else t for t in chain.tensors]  # fmt: skip
    chain = replace(chain, tensors=tuple(stored))
    assert turned(chain) is chain


@pytest.mark.parametrize("positions", [64, 257])
def test_positions_of_several_pictures_are_columns_as_those_of_one(positions: int) -> None:
    one = same(pictures(positions))
    assert [o.axes for o in one.operators] == [("m", "b", "n"), ("m", "b", "n"), ("h", "b", "n")]
    every = [o.product for o in (one.operators[0], one.operators[2])]
    assert [r.left.tensor for r in every if r is not None] == ["A", "D"]
    assert all(r is not None and r.columns == ("b", "n") for r in every)
    assert one.tensor("E").strides == (positions, 8 * positions, 1)


@pytest.mark.parametrize(
    "kept",
    [
        pictures(49),  # of few positions, which end within a line
        pictures(operators=["C[b, m, n] = sum[k] A[m, k] * B[b, k, n]"],
                 tensors={"A": {"shape": ["m", "k"], "constant": True},
                          "B": {"shape": ["b", "k", "n"], "strides": [1024, 1, 16]}}),
        pictures(operators=["C[b, m, n] = sum[k] A[m, k] * B[b, k, n]"],
                 tensors={"A": {"shape": ["m", "k"], "constant": True},
                          "B": {"shape": ["b", "k", "n"]},
                          "C": {"shape": ["b", "m", "n"], "strides": [1536, 1, 24]}}),
        pictures(operators=["C[b, m, n] = sum[k] A[m, k] * B[b, k, n]"],
                 tensors={"A": {"shape": ["m", "k"]}, "B": {"shape": ["b", "k", "n"]}}),
    ],
    ids=["short", "read across", "stored across", "no weights"],
)  # fmt: skip
def test_positions_of_several_pictures_stay_rows(kept: Chain) -> None:
    assert turned(kept) is kept


@pytest.mark.parametrize(
    "kept",
    [
        convolution(48),  # rows of whole lines
        convolution(1001),
        convolution(axes={"m": 24, "n": [1, 49], "k": 32}),
        convolution(operators=["C[m, n] = sum[k] A[m, k] * B[k, n]"],
                    tensors={"A": {"shape": ["m", "k"], "constant": True},
                             "B": {"shape": ["k", "n"], "constant": True}}),
        convolution(operators=["C[m, n] = sum[k] A[m, k] * B[n, k]"],
                    tensors={"A": {"shape": ["m", "k"], "constant": True},
                             "B": {"shape": ["n", "k"]}}),  # columns apart
        convolution(operators=["C[n, m] = sum[k] A[m, k] * B[k, n]"],
                    tensors={"A": {"shape": ["m", "k"], "constant": True},
                             "B": {"shape": ["k", "n"]}}),  # on the right already
        convolution(operators=["C[m, n] = sum[k] A[m, k] * B[k, n]"],
                    tensors={"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}}),
    ],
)  # fmt: skip
def test_products_that_stay_as_they_are(kept: Chain) -> None:
    assert turned(kept) == kept
