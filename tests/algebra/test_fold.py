"""Folding maps into the only map that reads them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.fold import fold
from mcfuser.chain import Chain, from_json, to_json
from mcfuser.space.reference import evaluate
from tests.support.chains import LINES, chain, extents, inputs, named

AXES = {"m": 4, "n": 5}
UNARY = ["exp({} * 0.1)", "tanh({})", "-{}", "{} + 1.5", "{} * X[m, n]", "max({}, 0.0)", "{} - n"]


def outs(c: Chain) -> list[str]:
    return [o.out for o in c.operators]


def maps(*bodies: str, outputs: tuple[str, ...] = ()) -> Chain:
    return chain(AXES, {"X": "mn"}, bodies, outputs)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(UNARY), min_size=1, max_size=6), st.integers(0, 99))
def test_maps_in_a_row_become_one(bodies, seed) -> None:
    lines = [
        f"T{i}[m, n] = " + body.format(f"T{i - 1}[m, n]" if i else "X[m, n]")
        for i, body in enumerate(bodies)
    ]
    c = maps(*lines)
    folded = fold(c)
    assert len(folded.operators) == 1
    last = c.outputs[0]
    x = inputs(c, seed)
    np.testing.assert_allclose(evaluate(folded, x)[last], evaluate(c, x)[last], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LINES)), extents(8), st.integers(0, 99))
def test_folding_changes_no_result_and_folds_once(name, sizes, seed) -> None:
    c = named(name, sizes)
    folded = fold(c)
    assert fold(folded) == folded
    assert folded.inputs == c.inputs
    x = inputs(c, seed)
    for o in folded.operators:
        np.testing.assert_allclose(
            evaluate(folded, x)[o.out], evaluate(c, x)[o.out], rtol=1e-9, atol=1e-12
        )


def test_a_map_with_two_readers_stays() -> None:
    c = maps("T[m, n] = exp(X[m, n])", "U[m, n] = T[m, n] + 1.0", "V[m, n] = T[m, n] * 2.0",
             outputs=("U", "V"))  # fmt: skip
    assert fold(c) == c


def test_folding_into_one_reader_may_leave_one_reader() -> None:
    c = maps("T[m, n] = exp(X[m, n])", "U[m, n] = T[m, n] + 1.0", "V[m, n] = T[m, n] * U[m, n]")
    assert outs(fold(c)) == ["V"]


def test_a_map_that_a_reduction_reads_stays() -> None:
    c = maps("T[m, n] = exp(X[m, n])", "Z[m] = sum[n] T[m, n]")
    assert fold(c) == c


def test_an_output_stays() -> None:
    c = maps("T[m, n] = exp(X[m, n])", "U[m, n] = T[m, n] + 1.0", outputs=("T", "U"))
    assert fold(c) == c


def test_a_map_that_rounds_stays() -> None:
    document = to_json(maps("T[m, n] = exp(X[m, n])", "U[m, n] = T[m, n] + 1.0"))
    document["tensors"]["T"]["dtype"] = "float16"  # type: ignore[index]
    c = from_json(document)
    assert fold(c) == c


def test_maps_with_a_domain_stay() -> None:
    c = maps("T[m, n] = exp(X[m, n]) where n <= m", "U[m, n] = T[m, n] + 1.0")
    assert fold(c) == c


def test_a_map_that_a_domain_reads_stays() -> None:
    c = maps("T[m, n] = X[m, n] * 2.0", "W[m, n] = T[m, n] + 1.0",
             "Z[m] = sum[n] W[m, n] where T[m, n] < 1.0")  # fmt: skip
    x = inputs(c)
    np.testing.assert_allclose(evaluate(fold(c), x)["Z"], evaluate(c, x)["Z"])


def test_a_map_that_is_read_twice_folds_where_it_is_cheap() -> None:
    two = maps("T[m, n] = X[m, n] * 2.0 + 1.0", "U[m, n] = T[m, n] * T[m, n]")
    three = maps("T[m, n] = exp(X[m, n] * 2.0 + 1.0)", "U[m, n] = T[m, n] * T[m, n]")
    assert outs(fold(two)) == ["U"] and fold(three) == three
