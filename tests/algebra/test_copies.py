"""Copies are dropped; whatever is more than a copy stays."""

from __future__ import annotations

import numpy as np

from mcfuser.algebra.copies import without_copies
from mcfuser.space.reference import evaluate
from tests.support.chains import chain, inputs

AXES = {"m": 4, "n": 6}


def test_what_reads_a_copy_reads_the_result() -> None:
    lines = ["R[m] = max[n] X[m, n]", "T[m] = R[m]", "S[m] = T[m]",
             "Z[m] = sum[n] exp(X[m, n] - S[m])"]  # fmt: skip
    c = chain(AXES, {"X": "mn"}, lines)
    found = without_copies(c)
    assert [o.out for o in found.operators] == ["R", "Z"]
    assert str(found.operator("Z")) == "Z[m] = sum[n] exp(X[m, n] - R[m])"
    x = inputs(c)
    np.testing.assert_array_equal(evaluate(found, x)["Z"], evaluate(c, x)["Z"])


def test_outputs_inputs_and_conditions_are_no_copies() -> None:
    lines = ["Y[m, n] = X[m, n]", "R[m] = max[n] Y[m, n]", "T[m] = R[m] where m < 2",
             "S[m] = R[m]"]  # fmt: skip
    c = chain(AXES, {"X": "mn"}, lines, ["S", "T"])
    assert without_copies(c) == c


def test_a_transposed_read_is_no_copy() -> None:
    lines = ["Y[m, n] = X[m, n] * 2.0", "T[n, m] = Y[m, n]", "S[n] = sum[m] T[n, m]"]
    c = chain(AXES, {"X": "mn"}, lines)
    assert without_copies(c) == c
