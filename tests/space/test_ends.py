"""What reductions mask past the ends of axes, derived from what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcfuser.chain import LOWEST, Chain
from mcfuser.space import interpret
from mcfuser.space.ends import _together
from mcfuser.space.expression import bind, loop_axes, parse, tilings
from mcfuser.space.past import Placement
from mcfuser.space.place import place
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from mcfuser.space.statement import Compute, Fill, plain_index, statements
from tests.support.chains import chain
from tests.support.random_chains import Case, cases
from tests.support.softmaxes import softmax

SHAPES = {"A": "mk", "B": "kn", "D": "nh", "Q": "mk", "K": "nk", "M": "mn", "x": "m"}
EXTENTS = {"m": 6, "n": 40, "k": 8, "h": 8}


def computed(c: Chain, expression: str, split: str | None = None) -> dict[str, Compute]:
    _, body = place(program(c), parse(expression), split=split)
    return {s.buffer: s for s, _ in statements(body) if isinstance(s, Compute)}


def fills(c: Chain, expression: str = "mh.nk") -> list[Fill]:
    return [s.fill for s in computed(c, expression).values() if s.fill is not None]


def masks(lines: Sequence[str], expression: str, *outputs: str) -> dict[str, tuple[str, ...]]:
    c = chain(EXTENTS, SHAPES, lines, outputs)
    return {n: s.masked for n, s in computed(c, expression).items() if s.operator.over}


@pytest.mark.parametrize(
    ("where", "scores", "ended"),
    [
        ("", "S", ()),
        ("n <= m", "S_inside", ("n",)),
        ("n <= m + 34", "S_inside", ("n",)),
        ("n <= m + 35", "S_inside", ()),
        ("n <= m + 40", "S_inside", ()),
    ],
)
def test_scores_are_filled_where_their_maximum_is_taken(
    where: str, scores: str, ended: tuple[str, ...]
) -> None:
    """The rows m are 6, so n <= m + 34 ends before the 40 positions of n do."""
    found = computed(softmax("S[m, n] * 0.125", where), "mh.nk")
    assert found["R"].fill == Fill(scores, ("n",), LOWEST, ended)
    assert [n for n, s in found.items() if s.fill is not None] == ["R"]
    assert not any(s.masked for s in found.values())
    assert found["U"].masked_factors == ((), ())


@pytest.mark.parametrize("where", ["", "n <= m"])
@pytest.mark.parametrize(
    ("x", "more"),
    [
        ("S[m, n] * 0.125 + M[m, n]", ""),
        ("select(n < 9, S[m, n] * 0.125, -3.4028234663852886e38)", ""),
        ("S[m, n] * 0.125", "T[m] = sum[n] P[m, n] * log(P[m, n])"),
        ("S[m, n] * 0.125", "T[m] = sum[n] X[m, n]"),
    ],
    ids=["mask", "selected", "entropy", "scores"],
)
def test_nothing_is_filled_that_others_need_or_a_mask_may_be_in(
    x: str, more: str, where: str
) -> None:
    lines = (more,) if more else ()
    c = softmax(x, where, *lines, outputs=("O", "T") if more else ("O",))
    found = computed(c, "mh.nk")
    assert not any(s.fill for s in found.values())
    assert found["R"].masked == found["Z"].masked == ("n",)


def test_a_row_of_infinities_may_have_met_nothing_but_a_domain_says_what_that_means() -> None:
    """Where every score of a row is infinite, the maximum is the lowest number: nothing less can be
    past the end. The zero that is read instead for a domain's sake does for the end as well."""
    infinite = "select(n < 9, S[m, n] * 0.125, -inf)"
    assert not fills(softmax(infinite))
    assert [f.buffer for f in fills(softmax(infinite, "n <= m"))] == ["X_inside"]


def test_scores_of_another_loop_are_not_filled() -> None:
    """With the scores kept whole, the loop that makes them is not the one that reads them."""
    c = softmax("S[m, n] * 0.125")
    assert not fills(c, "mh.kn")
    assert fills(c, "mh.nk")


def test_what_is_loaded_is_zero_and_so_is_what_is_computed_from_it() -> None:
    lines = ["C[m, n] = sum[k] A[m, k] * B[k, n]", "T[m, n] = C[m, n] * tanh(C[m, n])",
             "E[m, h] = sum[n] T[m, n] * D[n, h]", "G[m, h] = sum[n] (T[m, n] + x[m]) * D[n, h]",
             "Y[m, h] = E[m, h] + G[m, h]"]  # fmt: skip
    c = chain(EXTENTS, SHAPES, lines)
    found = computed(c, "mh.nk")
    assert found["C"].masked == found["E"].masked == ()
    assert found["C"].masked_factors == ((), ()) == found["E"].masked_factors


@pytest.mark.parametrize(
    ("body", "masked"),
    [
        ("A[m, n] * A[m, n]", ()),
        ("A[m, n] + x[m]", ("n",)),
        ("A[m, n] * x[m]", ()),
        ("x[m] * x[m] * A[m, 0]", ("n",)),
        ("exp(A[m, n])", ("n",)),
        ("A[m, n] * log(abs(A[m, n]))", ("n",)),
        ("A[m, n] / (1.0 + exp(-A[m, n]))", ()),
        ("A[m, 0] * y[n]", ()),
    ],
)
def test_sums_of_what_is_loaded(body: str, masked: tuple[str, ...]) -> None:
    shapes = {"A": "mn", "x": "m", "y": "n"}
    c = chain(EXTENTS, shapes, [f"T[m] = sum[n] {body} * select(n < 50, 1.0, 1.0)"])
    assert computed(c, "m.n")["T"].masked == masked


def test_what_a_map_is_past_an_end_is_known_and_what_a_sum_of_ones_is_is_not() -> None:
    """A sum over k of what is 1 past the end of n is 8 there, not 1."""
    product = "C[m, n] = sum[k] A[m, k] * B[k, n]"
    map_ = [product, "T[m, n] = tanh(C[m, n]) + 1.0", "E[m] = sum[n] (T[m, n] - 1.0)"]
    assert masks(map_, "m.nk", "T", "E") == {"C": (), "E": ()}
    ones = [product.replace("B[k, n]", "B[k, n] + 1.0"), "E[m] = sum[n] (C[m, n] - 1.0)"]
    assert masks(ones, "m.nk")["E"] == ("n",)


def test_a_repeated_row_is_not_zero_past_its_end() -> None:
    """A stride of zero has the same element at every position."""
    c = chain(EXTENTS, {"A": "mn"}, ["T[m] = sum[n] A[m, n] * A[m, n]"])
    (a, *rest) = c.tensors
    assert computed(c, "m.n")["T"].masked == ()
    again = replace(c, tensors=(replace(a, strides=(1, 0)), *rest))
    assert computed(again, "m.n")["T"].masked == ("n",)


def test_a_maximum_alone_has_its_own_mask() -> None:
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "R[m] = max[n] S[m, n]"]
    assert masks(lines, "m.nk") == {"S": (), "R": ("n",)}
    assert not fills(chain(EXTENTS, SHAPES, lines), "m.nk")


def test_a_maximum_that_is_not_subtracted_shares_its_fill_with_sums_of_exponentials() -> None:
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "R[m] = max[n] S[m, n]",
             "Z[m] = sum[n] exp(S[m, n])"]  # fmt: skip
    c = chain(EXTENTS, SHAPES, lines, ("R", "Z"))
    assert fills(c, "m.nk") == [Fill("S", ("n",), LOWEST)]
    assert masks(lines, "m.nk", "R", "Z") == {"S": (), "R": (), "Z": ()}


# --- marks obeyed: nothing else is masked past an end ---------------------------------------


def filling(run: interpret._Run, s: Compute) -> None:
    """A statement computed after its fill, which leaves out what is said to hold it already."""
    fill = s.fill
    if fill is not None:
        held = run.buffers[fill.buffer][interpret._region(run, fill.buffer)]
        for i, dim in enumerate(run.schedule.buffer(fill.buffer).dims):
            a = plain_index(dim.index)
            if a in fill.axes and a not in fill.ended:
                past = run.positions(a) >= run.schedule.chain.size(a)
                np.moveaxis(held, i, 0)[past] = fill.value
    COMPUTE(run, s)


def masked_alone(run: interpret._Run, s: Compute) -> np.ndarray:
    """Where its marks and its domain leave a statement its body."""
    space = s.operator.related
    inside = np.ones((1,) * len(space), bool)
    for a in s.masked:
        shape = [1] * len(space)
        shape[space.index(a)] = -1
        inside = inside & (run.positions(a) < run.schedule.chain.size(a)).reshape(shape)
    if s.domain is None:
        return inside
    return inside & interpret._over(run, s.domain, space).astype(bool)


COMPUTE = interpret._compute


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 10**9))
def test_random_schedules_need_no_more_masks_than_are_marked(case: Case, seed: int) -> None:
    rng, ready = Random(seed), program(case.chain)
    expression = bind(ready.chain, rng.choice(tilings(ready.chain)))
    sizes = {a: ready.chain.size(a) for a in loop_axes(ready.chain)}
    tiles = {a: min(n, max(-(-n // rng.randint(1, 3)), 1) + rng.randint(0, 1))
             for a, n in sizes.items()}  # fmt: skip
    dead = frozenset(a for a, n in tiles.items() if n >= sizes[a])
    schedule = Plan(ready, expression, dead).schedule(tiles)
    data = np.random.default_rng(seed)
    inputs = {n: data.standard_normal(case.chain.shape(n)) for n in case.chain.inputs}
    expected = evaluate(case.chain, inputs)
    obeyed = {"_compute": filling, "_valid": masked_alone}
    with patch.multiple(interpret, **obeyed):
        found, _ = interpret.interpret(schedule, inputs)
    for name in case.chain.outputs:
        scale = np.abs(expected[name]).max() + 1e-30
        np.testing.assert_allclose(found[name] / scale, expected[name] / scale, rtol=0, atol=1e-9)


def test_a_reader_outside_the_first_one_s_loops_is_not_together_with_it() -> None:
    """Neither alone: every reader must stand where the first one does."""
    reads = {"C": "mn", "R": "m"}
    of = chain(EXTENTS, reads, ["P[m, n] = C[m, n] + 1.0", "Z[m] = sum[n] P[m, n]"])
    first, last = (SimpleNamespace(buffer=o.out, operator=o) for o in of.operators)

    def together(**around: tuple[str, ...]) -> bool:
        placed = SimpleNamespace(readers=lambda name: [first, last], around=around)
        return _together(cast(Placement, placed), "C")

    assert together(C=("m", "n"), P=("m", "n"), Z=("m", "n"))
    assert not together(C=("m", "n"), P=("m", "n"), Z=("m",))
