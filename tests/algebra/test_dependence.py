"""Dependences between reductions over one axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import Dependence, dependences, through_maps
from mcfuser.expr import Expr, parse, reads, text
from mcfuser.space.reference import evaluate, gather, value
from tests.support.chains import LINES, chain, extents, inputs, named, renamed

SIZES = dict.fromkeys("bmnkhpc", 4)


def test_attention_needs_its_maximum_twice() -> None:
    assert dependences(named("attention", SIZES)) == (
        Dependence("Z", "R", "n"),
        Dependence("U", "R", "n"),
    )


def test_a_sum_of_normalised_terms_needs_both_reductions() -> None:
    assert dependences(named("softmax_in_place", SIZES)) == (
        Dependence("Z", "R", "n"),
        Dependence("O", "R", "n"),
        Dependence("O", "Z", "n"),
    )


@pytest.mark.parametrize("name", ["gemm", "mlp", "gated", "three_products", "linear"])
def test_products_in_a_row_reduce_over_axes_of_their_own(name: str) -> None:
    assert dependences(named(name, SIZES)) == ()


def test_every_common_axis_is_one_dependence() -> None:
    lines = ["R[m] = max[n, k] X[m, n, k]", "Z[m] = sum[k, n] exp(X[m, n, k] - R[m])"]
    c = chain({"m": 4, "n": 4, "k": 4}, {"X": "mnk"}, lines)
    assert dependences(c) == (Dependence("Z", "R", "n"), Dependence("Z", "R", "k"))


def test_a_reduction_over_another_axis_is_no_dependence() -> None:
    c = chain({"m": 4, "n": 4}, {"X": "mn"},
              ["R[m] = max[n] X[m, n]", "Z[n] = sum[m] exp(X[m, n] - R[m])"])  # fmt: skip
    assert dependences(c) == ()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LINES)), st.permutations([*"abcdefz"]))
def test_dependences_are_named_as_the_chain_is(name, letters) -> None:
    c = named(name, SIZES)
    axes = dict(zip("bmnkhpc", letters, strict=True))
    tensors = {t.name: f"{t.name}_x" for t in c.tensors}
    moved = tuple(
        Dependence(tensors[d.target], tensors[d.moving], axes[d.axis]) for d in dependences(c)
    )
    assert dependences(renamed(c, axes, tensors)) == moved


def test_bodies_are_written_out_down_to_reductions() -> None:
    c = named("softmax_in_place", SIZES)
    assert text(through_maps(c, c.operator("O").body)) == "exp(S[m, n] - R[m]) / Z[m] * V[n, h]"


def test_maps_are_written_out_at_the_position_that_is_read() -> None:
    c = chain({"m": 4, "n": 4, "k": 3}, {"X": (8, "n")},
              ["Y[m, n] = X[m + 2, n] * m", "W[m, k] = Y[k + 1, 2] + Y[m, 0]"])  # fmt: skip
    expected = parse("X[k + 3, 2] * (k + 1) + X[m + 2, 0] * m")
    assert through_maps(c, c.operator("W").body) == expected


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LINES)), extents(8), st.integers(0, 99))
def test_a_body_written_out_has_the_same_value(name, sizes, seed) -> None:
    c = named(name, sizes)
    known = inputs(c, seed)
    known |= evaluate(c, known)

    def over_space(e: Expr, related: tuple[str, ...]) -> np.ndarray:
        def index(a: str) -> np.ndarray:
            return np.arange(c.size(a)).reshape([-1 if x == a else 1 for x in related])

        found = value(e, lambda r: gather(c, r, related, known), index)
        return np.broadcast_to(found, tuple(c.size(a) for a in related))

    for o in c.operators:
        whole = through_maps(c, o.body)
        assert all(
            r.tensor in c.inputs or c.operator(r.tensor).reduce != "none" for r in reads(whole)
        )
        np.testing.assert_allclose(
            over_space(whole, o.related), over_space(o.body, o.related), rtol=1e-9, atol=1e-12
        )


def test_a_domain_that_reads_a_reduction_depends_on_it() -> None:
    lines = ["R[m] = max[n] X[m, n]", "Z[m] = sum[n] X[m, n] where X[m, n] < R[m] - 0.5"]
    c = chain({"m": 4, "n": 8}, {"X": "mn"}, lines)
    assert dependences(c) == (Dependence("Z", "R", "n"),)


def test_a_map_written_out_keeps_its_domain() -> None:
    c = chain({"m": 4, "n": 8}, {"X": "mn"},
              ["Y[m, n] = X[m, n] + 2.0 where n < m", "Z[m] = sum[n] Y[m, n]"])  # fmt: skip
    written = through_maps(c, c.operator("Z").body)
    assert "n < m" in text(written) or "Y[m, n]" in text(written)
