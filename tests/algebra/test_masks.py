"""Masks taken once: where a domain goes, what needs no mask then, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.algebra.exponent import LOG2E, base_two
from mcfuser.algebra.masks import masked_once
from mcfuser.chain import LOWEST, Chain, from_json
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
    assert not ready.settled
    same(c, ready.chain)


def test_masks_are_taken_once() -> None:
    c = base_two(softmax("S[m, n] * 0.125", "n <= m"))
    found, settled = masked_once(c)
    assert settled == {"R", "Z", "U"}
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
    assert ready.settled == {"R", "Z", "U"}
    same(c, ready.chain)


@pytest.mark.parametrize("x", ["S[m, n] * 0.125", "S[m, n] * 3.0", "40.0 * tanh(S[m, n])"])
def test_rows_without_a_position_are_zero(x: str) -> None:
    """The rows' lengths are 0, 1, 16, 17, 40 and 0."""
    c = softmax(x, "n < L[m]")
    ready = program(c)
    assert ready.settled == {"R", "Z", "U"}
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
    assert program(c).settled
    same(c, program(c).chain)
