"""Chains cut into pieces: what each computes, where cuts fall, and how wide values cross them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import (
    Chain,
    attention,
    cut,
    from_json,
    gemm,
    intermediate_cuts,
    parts,
    products,
    reduction_cut,
    unfused_cut,
)
from mcfuser.expr import Cast, walk
from mcfuser.space.reference import evaluate
from mcfuser.tune.cover import pieces
from tests.support.chains import LINES, extents, inputs, named

chains = st.builds(named, st.sampled_from(sorted(LINES)), extents())


def in_a_row(chain: Chain, pieces: tuple[Chain, ...], seed: int) -> None:
    expected, known = evaluate(chain, inputs(chain, seed)), dict(inputs(chain, seed))
    for piece in pieces:
        found = evaluate(piece, {n: known[n] for n in piece.inputs})
        known |= {o: found[o] for o in piece.outputs}
    for o in chain.outputs:
        np.testing.assert_allclose(known[o], expected[o], rtol=1e-9, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(chains, st.integers(0, 99), st.data())
def test_the_pieces_of_every_cut_compute_the_chain(c: Chain, seed: int, data) -> None:
    in_a_row(c, parts(c), seed)
    assert all(len(products(part)) <= 1 for part in parts(c))
    if others := list(intermediate_cuts(unfused_cut(c))):
        in_a_row(c, cut(c, data.draw(st.sampled_from(others))), seed)


def test_cuts_between_join_neighbours() -> None:
    c = attention(2, 16, 16, 16, 16)
    assert unfused_cut(c) == (2, 3, 2)
    assert list(intermediate_cuts((2, 3, 2))) == [(2, 5), (5, 2)]
    assert list(intermediate_cuts(unfused_cut(gemm(1, 16, 16, 16, 16)))) == []
    assert cut(c, (7,)) == (c,)
    assert [p.name for p in cut(c, (2, 5))] == [f"{c.name}/1", f"{c.name}/2"]


NORM = ["M[m] = sum[n] X[m, n]", "V[m] = sum[n] (X[m, n] - M[m]) * (X[m, n] - M[m])",
        "R[m] = 1.0 / sqrt(V[m] + 0.001)", "Y[m, n] = (X[m, n] - M[m]) * R[m]"]  # fmt: skip
SOFTMAX = ["R[m] = max[n] X[m, n]", "E[m, n] = exp(X[m, n] - R[m])", "Z[m] = sum[n] E[m, n]",
           "Y[m, n] = E[m, n] / Z[m]"]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (NORM, (1, 2, 1)),
        (NORM[:3], (1, 2)),
        (NORM[:1], (1,)),
        (SOFTMAX, (1, 2, 1)),
        (["Y[m, n] = exp(X[m, n])"], (1,)),
        (["E[m, n] = exp(X[m, n])", "Z[m] = sum[n] E[m, n]", "Y[] = max[m] Z[m]"], (2, 1)),
    ],
)
def test_a_chain_without_products_is_cut_behind_its_reductions(
    lines: list[str], where: tuple[int, ...]
) -> None:
    c = from_json({"axes": {"m": 3, "n": 8}, "operators": lines,
                   "tensors": {"X": {"shape": ["m", "n"]}}})  # fmt: skip
    assert reduction_cut(c) == where
    in_a_row(c, cut(c, where), 0)


def dtypes(pieces: tuple[Chain, ...]) -> list[dict[str, str]]:
    return [{o: p.tensor(o).dtype for o in p.outputs} for p in pieces]


def test_a_value_that_is_rounded_where_it_is_read_crosses_rounded() -> None:
    first, second = parts(gemm(1, 16, 16, 16, 16, "float16"))
    assert first.tensor("C").dtype == second.tensor("C").dtype == "float16"
    assert not any(isinstance(e, Cast) for e in walk(second.operators[0].body))


def test_a_value_that_its_piece_needs_whole_crosses_as_a_copy() -> None:
    """The sum of exponentials is over unrounded ones."""
    c = attention(2, 16, 16, 16, 16, "float16")
    assert dtypes(parts(c)) == [
        {"X": "float32"}, {"Z": "float32", "P_float16": "float16"}, {"O": "float16"}
    ]  # fmt: skip
    assert [str(o) for o in parts(c)[1].operators][-1] == (
        "P_float16[b, m, n] = float16(P[b, m, n])"
    )
    assert dtypes(cut(c, (5, 2)))[0] == {"Z": "float32", "P_float16": "float16"}
    assert dtypes(cut(c, (2, 5))) == [{"X": "float32"}, {"O": "float16"}]
    in_a_row(c, parts(c), 0)


DOCUMENT = {
    "name": "norm", "axes": {"m": 4, "n": 8, "k": 8},
    "tensors": {"X": {"shape": ["m", "k"], "dtype": "float16"},
                "W": {"shape": ["k", "n"], "dtype": "float16"},
                "V": {"shape": ["k", "n"], "dtype": "float16"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("readers", "crossing"),
    [
        (("float16(N[m, k])", "float16(N[m, k])"), {"N": "float16"}),
        (("float16(N[m, k])", "bfloat16(N[m, k])"), {"N": "float32"}),
        (("float16(N[m, k])", "N[m, k]"), {"N": "float32"}),
        (("float32(N[m, k])", "float32(N[m, k])"), {"N": "float32"}),
    ],
)
def test_readers_that_disagree_get_the_value_whole(readers, crossing) -> None:
    one, two = readers
    operators = [
        "Q[m] = sum[k] X[m, k] * X[m, k]", "N[m, k] = X[m, k] / sqrt(Q[m])",
        f"G[m, n] = sum[k] {one} * W[k, n]", f"U[m, n] = sum[k] {two} * V[k, n]",
        "Y[m, n] = G[m, n] * U[m, n]",
    ]  # fmt: skip
    c = from_json({**DOCUMENT, "operators": operators})
    assert dtypes(parts(c))[0] == crossing
    assert dtypes(parts(c))[1] == {"G": "float32"}
    in_a_row(c, parts(c), 1)


def test_an_output_keeps_its_type() -> None:
    operators = ["Q[m] = sum[k] X[m, k] * X[m, k]", "N[m, k] = X[m, k] / sqrt(Q[m])",
                 "G[m, n] = sum[k] float16(N[m, k]) * W[k, n]"]  # fmt: skip
    tensors = DOCUMENT["tensors"] | {"N": {"shape": ["m", "k"]}}  # type: ignore[operator]
    c = from_json({**DOCUMENT, "tensors": tensors, "operators": operators, "outputs": ["N", "G"]})
    assert dtypes(parts(c))[0] == {"N": "float32"}


def test_a_condition_reads_the_value_whole() -> None:
    operators = ["Q[m] = sum[k] X[m, k] * X[m, k]", "N[m, k] = X[m, k] / sqrt(Q[m])",
                 "G[m, n] = sum[k] float16(N[m, k]) * W[k, n] where N[m, k] < 1.0"]  # fmt: skip
    c = from_json({**DOCUMENT, "operators": operators})
    assert dtypes(parts(c))[0] == {"N": "float32"}


def test_empty_rows_are_nothing_in_pieces_too() -> None:
    """A piece that divides by a sum does not see that it is one: the chain's guard goes along."""
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "R[m] = max[n] S[m, n] where n < L[m]",
             "P[m, n] = exp(S[m, n] - R[m])", "Z[m] = sum[n] P[m, n] where n < L[m]",
             "U[m, h] = sum[n] P[m, n] * V[n, h] where n < L[m]",
             "O[m, h] = U[m, h] / Z[m]"]  # fmt: skip
    shapes = {"Q": "mk", "K": "nk", "V": "nh", "L": "m"}
    c = from_json({"axes": {"m": 3, "n": 8, "k": 4, "h": 4}, "operators": lines,
                   "tensors": {t: {"shape": list(s)} for t, s in shapes.items()}})  # fmt: skip
    x = inputs(c, 0)
    x["L"] = np.asarray([0.0, 3.0, 8.0])
    expected = evaluate(c, x)["O"]
    assert not expected[0].any()
    for where in (unfused_cut(c), *intermediate_cuts(unfused_cut(c))):
        known = dict(x)
        for piece in pieces(c, where):
            known |= evaluate(piece, {n: known[n] for n in piece.inputs})
        np.testing.assert_allclose(known["O"], expected, rtol=1e-9, atol=1e-12)


def test_weights_made_of_constants_stay_with_their_product() -> None:
    """A piece that makes them alone would write and read numbers that are four times as long."""
    tensors = {
        "X": {"shape": ["m", "k"]},
        "Q": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
        "V": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
        "S": {"shape": ["n"], "constant": True},
        "T": {"shape": ["n"]},
    }
    lines = [
        "W[k, n] = float32(Q[k, n]) * S[n]",
        "C[m, n] = sum[k] X[m, k] * W[k, n]",
        "A[k, n] = float32(V[k, n])",
        "B[k, n] = A[k, n] * S[n]",
        "D[m, n] = sum[k] X[m, k] * B[k, n]",
        "Y[m, n] = C[m, n] * D[m, n]",
    ]
    document = {"axes": {"m": 5, "n": 6, "k": 7}, "tensors": tensors, "operators": lines}
    c = from_json(document)
    assert unfused_cut(c) == (2, 4)
    in_a_row(c, parts(c), 0)
    varying = from_json({**document, "tensors": {**tensors, "S": {"shape": ["n"]}}})
    assert unfused_cut(varying) == (1, 1, 2, 2)
    read_outside = from_json({**document, "outputs": ["W", "Y"]})
    assert unfused_cut(read_outside) == (1, 1, 4)


QUANTIZED = {
    "X": {"shape": ["m", "k"], "dtype": "uint8"},
    "Z": {"shape": [1], "dtype": "uint8"},
    "V": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
    "W": {"shape": ["n", "h"], "dtype": "int8", "constant": True},
}
TWO_LAYERS = [
    "P[m, k] = float32(X[m, k]) - float32(Z[0])",
    "C[m, n] = sum[k] P[m, k] * float32(V[k, n])",
    "Q[m, n] = min(max(round(C[m, n] * 0.01) + 7.0, 0.0), 255.0) - float32(Z[0])",
    "Y[m, h] = sum[n] Q[m, n] * float32(W[n, h])",
]


def test_what_is_dequantized_stays_with_its_product_and_whole_numbers_cross_as_such() -> None:
    document = {"axes": {"m": 5, "n": 6, "k": 7, "h": 4}, "tensors": QUANTIZED,
                "operators": TWO_LAYERS}  # fmt: skip
    c = from_json(document)
    assert unfused_cut(c) == (3, 1)
    one, two = parts(c)
    assert one.tensor("Q_whole").dtype == two.tensor("Q_whole").dtype == "uint8"
    made = "Q[m, n] = float32(Q_whole[m, n]) - float32(Z[0])"
    assert two.operators == from_json({**document, "operators": [made, TWO_LAYERS[3]],
        "tensors": {"Q_whole": {"shape": ["m", "n"], "dtype": "uint8"},
                    "W": QUANTIZED["W"], "Z": QUANTIZED["Z"]}}).operators  # fmt: skip
    in_a_row(c, (one, two), 0)


def test_bytes_that_two_pieces_read_cross_less_their_zero_point() -> None:
    lines = [*TWO_LAYERS[:3], "U[m, h] = sum[n] Q[m, n] * float32(W[n, h])",
             "Y[m, j] = sum[n] Q[m, n] * float32(U[n, j])"]  # fmt: skip
    c = from_json({"axes": {"m": 6, "n": 6, "k": 7, "h": 4, "j": 4}, "tensors": QUANTIZED,
                   "operators": lines, "outputs": ["Y", "U"]})  # fmt: skip
    assert {p.tensor("Q").dtype for p in parts(c)} == {"int16"}


@pytest.mark.parametrize(
    ("line", "outputs", "dtype"),
    [
        (TWO_LAYERS[2].replace(" - float32(Z[0])", ""), ("Y",), "uint8"),
        (TWO_LAYERS[2].replace(" + 7.0, 0.0), 255.0", ", -500.0), 90.0"), ("Y",), "int16"),
        (TWO_LAYERS[2].replace("round(", "(2.0 * "), ("Y",), "float32"),
        (TWO_LAYERS[2].replace("255.0", "2550000.0"), ("Y",), "float32"),
        (TWO_LAYERS[2], ("Q", "Y"), "float32"),
    ],
    ids=["bytes", "with a zero point", "reals", "large numbers", "an output"],
)
def test_what_crosses_as_integers(line: str, outputs: tuple[str, ...], dtype: str) -> None:
    document = {"axes": {"m": 5, "n": 6, "k": 7, "h": 4}, "tensors": QUANTIZED,
                "operators": [*TWO_LAYERS[:2], line, TWO_LAYERS[3]],
                "outputs": [*outputs]}  # fmt: skip
    c = from_json(document)
    one, two = parts(c)
    assert one.tensor("Q").dtype == two.tensor("Q").dtype == dtype
    in_a_row(c, (one, two), 0)


def test_whole_numbers_that_their_own_piece_reads_cross_as_they_are() -> None:
    lines = [
        *TWO_LAYERS[:3],
        "R[m, n] = Q[m, n] * 0.5",
        "Y[m, h] = sum[n] Q[m, n] * float32(W[n, h])",
    ]
    c = from_json({"axes": {"m": 5, "n": 6, "k": 7, "h": 4}, "tensors": QUANTIZED,
                   "operators": lines, "outputs": ["R", "Y"]})  # fmt: skip
    one, two = parts(c)
    assert one.tensor("Q").dtype == two.tensor("Q").dtype == "float32"
    in_a_row(c, (one, two), 0)
