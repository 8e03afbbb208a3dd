"""Exponentials to base two, and masks taken once: what is rewritten, and that nothing changes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mcfuser.algebra.exponent import LOG2E, base_two
from mcfuser.algebra.masks import masked_once, softmaxes
from mcfuser.chain import LOWEST, Chain, attention, from_json
from mcfuser.expr import Call, walk
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.chains import chain

SHAPES = {"Q": "mk", "K": "nk", "V": "nh", "M": "mn", "a": "m", "L": "m"}


def softmax(x: str, where: str = "", *more: str, outputs: tuple[str, ...] = ("O",)) -> Chain:
    """softmax(x) V over rows of m, x an expression of the scores S."""
    inside = f" where {where}" if where else ""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"X[m, n] = {x}",
        f"R[m] = max[n] X[m, n]{inside}",
        "P[m, n] = exp(X[m, n] - R[m])",
        f"Z[m] = sum[n] P[m, n]{inside}",
        f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}",
        "O[m, h] = U[m, h] / Z[m]",
        *more,
    ]
    words = " ".join(lines)
    used = {t: list(s) for t, s in SHAPES.items() if f"{t}[" in words}
    tensors = {t: {"shape": s} for t, s in used.items()}
    extents = {"m": 6, "n": 40, "k": 8, "h": 8}
    return from_json({"name": "softmax", "axes": extents, "tensors": tensors,
                      "operators": lines, "outputs": list(outputs)})  # fmt: skip


def values(c: Chain) -> dict:
    rng = np.random.default_rng(0)
    found = {n: rng.standard_normal(c.shape(n)) for n in c.inputs}
    if "L" in found:
        found["L"] = np.asarray([0, 1, 16, 17, 40, 0], float)
    return found


def bodies(c: Chain) -> dict[str, str]:
    return {o.out: str(o).partition(" = ")[2] for o in c.operators}


def same(one: Chain, other: Chain) -> None:
    x = values(one)
    a, b = evaluate(one, x), evaluate(other, x)
    for o in one.outputs:
        np.testing.assert_allclose(b[o], a[o], rtol=1e-12, atol=1e-14)


def calls(c: Chain) -> set[str]:
    return {e.op for o in c.operators for e in walk(o.body) if isinstance(e, Call)}


def test_a_scale_joins_the_factor() -> None:
    c = softmax("S[m, n] * 0.125")
    found = base_two(c)
    factor = repr(0.125 * LOG2E)
    assert [o.out for o in found.operators] == ["S", "R", "P", "Z", "U", "O"]
    assert bodies(found)["R"] == f"max[n] S[m, n] * {factor}"
    assert bodies(found)["P"] == f"exp2(S[m, n] * {factor} - R[m])"
    same(c, found)


@pytest.mark.parametrize(
    ("x", "scores"),
    [
        ("S[m, n] / 8.0", "S[m, n] * 0.18"),
        ("0.5 * S[m, n]", "S[m, n] * 0.72"),
        ("S[m, n] * 0.5 * 0.25", "S[m, n] * 0.18"),
        ("S[m, n]", "S[m, n] * 1.44"),
        ("50.0 * tanh(S[m, n] / 50.0)", "X[m, n] * 72.1"),
        ("S[m, n] * 0.125 - a[m] * (m - n)", "X[m, n] * 1.44"),
        ("S[m, n] * -0.125", "X[m, n] * 1.44"),
    ],
)
def test_other_scores(x: str, scores: str) -> None:
    c = softmax(x, "n <= m")
    found = base_two(c)
    assert bodies(found)["P"].startswith(f"exp2({scores}")
    assert bodies(found)["R"].startswith(f"max[n] {scores}")
    assert "exp" not in calls(found)
    same(c, found)
    same(c, program(c).chain)


def test_what_reads_the_maximum_reads_it_back_to_base_e() -> None:
    c = softmax("S[m, n] * 0.125", "", "E[m] = log(Z[m]) + R[m]", outputs=("O", "E"))
    found = base_two(c)
    assert bodies(found)["E"] == f"log(Z[m]) + R[m] * {1 / LOG2E!r}"
    same(c, found)


def test_a_map_that_others_read_keeps_its_factor() -> None:
    c = softmax("S[m, n] * 0.125", "", "T[m, n] = X[m, n] + 1.0", outputs=("O", "T"))
    found = base_two(c)
    assert bodies(found)["X"] == "S[m, n] * 0.125"
    assert bodies(found)["P"].startswith("exp2(X[m, n] * 1.44")
    same(c, found)


@pytest.mark.parametrize(
    "c",
    [
        softmax("S[m, n] * 0.125 + M[m, n]"),  # a mask may hold the lowest number already
        softmax("S[m, n] * 0.125 + a[m]"),
        softmax("max(S[m, n], -a[m]) * 0.125"),
        softmax("select(n < L[m], S[m, n] * 0.125, -3.4028234663852886e38)"),
        softmax("S[m, n] * 0.125 + select(n < L[m], 0.0, -3.4e38)"),
        softmax("S[m, n] * 0.125", outputs=("O", "R")),
        softmax("S[m, n] * 0.125", "n < L[m]", "E[m] = R[m] + 1.0", outputs=("O", "E")),
    ],
    ids=["mask", "row", "maximum", "selected", "added", "given away", "read of empty rows"],
)  # fmt: skip
def test_what_stays_to_base_e(c: Chain) -> None:
    assert base_two(c) == c


def test_a_maximum_in_whole_numbers_stays_to_base_e() -> None:
    """Taken to base two, it would be rounded elsewhere."""
    c = softmax("S[m, n] * 0.125")
    tensors = tuple(replace(t, dtype="int32") if t.name == "R" else t for t in c.tensors)
    whole = replace(c, tensors=tensors)
    assert base_two(whole) == whole


@pytest.mark.parametrize(
    "exponential",
    ["exp(X[m, n] - R[m])", "exp2(X[m, n] * 0.5 - R[m])"],
    ids=["to base e", "to base two as written"],
)
@pytest.mark.parametrize("scores", ["M[m, n] * a[m]", "S[m, n] * 0.125 + M[m, n]"])
def test_a_row_of_nothing_but_the_lowest_number_is_the_mean_of_its_values(
    exponential: str, scores: str
) -> None:
    """A mask may put it there; the row is not empty for that, and its weights are all alike."""
    inside = " where n <= m"
    top = "X[m, n] * 0.5" if "0.5" in exponential else "X[m, n]"
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", f"X[m, n] = {scores}",
             f"R[m] = max[n] {top}{inside}", f"P[m, n] = {exponential}",
             f"Z[m] = sum[n] P[m, n]{inside}", f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}",
             "O[m, h] = U[m, h] / Z[m]"]  # fmt: skip
    lines = lines[0 if "S[" in scores else 1 :]
    c = chain({"m": 6, "n": 8, "k": 4, "h": 3}, SHAPES, lines)
    x = values(c)
    x["M"][4], x["a"] = LOWEST, np.ones(6)
    found = evaluate(program(c).chain, x)["O"]
    np.testing.assert_allclose(found[4], x["V"][:5].mean(axis=0))
    np.testing.assert_allclose(found, evaluate(c, x)["O"], rtol=1e-12)


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


@pytest.mark.parametrize(("where", "scores"), [("", "S"), ("n <= m", "S_inside")])
def test_a_softmax_is_known_by_its_maximum(where: str, scores: str) -> None:
    """Before its domain is in its scores, and after."""
    c = base_two(softmax("S[m, n] * 0.125", where))
    assert {n: (s.scores.tensor, s.weights, s.sums) for n, s in softmaxes(c).items()} == {
        "R": ("S", ("P",), ("Z", "U"))
    }
    (found,) = softmaxes(program(c).chain).values()
    assert (found.scores.tensor, found.weights, found.sums) == (scores, ("P",), ("Z", "U"))


@pytest.mark.parametrize("where", ["", "n <= m"])
@pytest.mark.parametrize(
    ("x", "more"),
    [
        ("S[m, n] * 0.125 + M[m, n]", ""),
        ("select(n < 9, S[m, n] * 0.125, -3.4028234663852886e38)", ""),
        ("select(n < 9, S[m, n] * 0.125, -inf)", ""),
        ("S[m, n] * 0.125", "T[m] = sum[n] P[m, n] * log(P[m, n])"),
        ("S[m, n] * 0.125", "T[m] = sum[n] X[m, n]"),
    ],
    ids=["mask", "selected", "infinite", "entropy", "scores"],
)
def test_what_others_need_or_a_mask_may_be_in_is_no_softmax(x: str, more: str, where: str) -> None:
    """Lanes past an axis' end would count in it."""
    lines = (more,) if more else ()
    c = program(softmax(x, where, *lines, outputs=("O", "T") if more else ("O",))).chain
    assert not softmaxes(c)


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


def test_a_repair_is_to_base_two() -> None:
    (first, *_) = program(attention(1, 16, 16, 16, 16)).rolls
    assert math.isclose(LOG2E, 1 / math.log(2))
    assert "exp2" in {e.op for e in walk(first.h) if isinstance(e, Call)}  # type: ignore[union-attr]
