"""What joins a maximum afterwards joins it while it runs, where nothing can tell the two apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcfuser.algebra.absorb import merge_into_maxima
from mcfuser.chain import Chain
from mcfuser.space.reference import evaluate
from tests.support.chains import chain, inputs

AXES = {"m": 5, "n": 6}
SHAPES = {"X": "mn", "s": "m"}


def same(lines: Sequence[str]) -> tuple[Chain, Chain]:
    """A chain, and the chain in which its maxima take in what joins them, of the same result."""
    c = chain(AXES, SHAPES, lines)
    found = merge_into_maxima(c)
    x = inputs(c)
    for o in c.outputs:
        np.testing.assert_allclose(evaluate(found, x)[o], evaluate(c, x)[o], rtol=1e-12)
    return c, found


def test_a_sink_joins_the_maximum_of_a_softmax() -> None:
    lines = ["T[m] = max[n] X[m, n] where n <= m", "R[m] = max(T[m], s[m])",
             "Z[m] = sum[n] exp(X[m, n] - R[m]) where n <= m"]  # fmt: skip
    _, found = same(lines)
    assert str(found.operator("T")) == "T[m] = max[n] max(X[m, n], s[m]) where n <= m"
    assert "T[m]" in str(found.operator("Z"))


def test_a_sum_outside_the_maximums_domain_needs_what_joined_it() -> None:
    """Row 0 has no position in the domain: its maximum is that of the sink alone."""
    lines = ["T[m] = max[n] X[m, n] where n < m", "R[m] = max(T[m], s[m])",
             "Z[m] = sum[n] exp(X[m, n] - R[m])"]  # fmt: skip
    c, found = same(lines)
    assert found == c


def test_what_joins_some_rows_alone_stays() -> None:
    """The rows from 2 on are compared with 0, not with their maximum."""
    lines = ["T[m] = max[n] X[m, n]", "R[m] = max(T[m], s[m]) where m < 2",
             "Z[m] = sum[n] exp(X[m, n] - R[m])"]  # fmt: skip
    c, found = same(lines)
    assert found == c


def test_a_reduction_of_what_is_joined_is_no_map_that_joins() -> None:
    """It sums the joined values over an axis of its own: nothing may read the maximum instead."""
    lines = ["T[m] = max[n] X[m, n]", "R[m] = sum[k] max(T[m], K[m, k])",
             "Z[m] = sum[n] exp(X[m, n] - R[m]) * T[m]"]  # fmt: skip
    c = chain(AXES | {"k": 3}, {"X": "mn", "K": "mk"}, lines)
    assert merge_into_maxima(c) == c
