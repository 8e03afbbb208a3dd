"""Loop bounds: what a domain says of an axis, and where a loop may use it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.expr import Affine, index_text, parse
from mcfuser.space.bounds import bounds
from mcfuser.space.expression import parse as expression
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan, traffic
from mcfuser.space.program import program
from mcfuser.space.statement import loops
from tests.support.chains import chain, inputs, named


def words(found: Sequence[Affine]) -> list[str]:
    return [index_text(i) for i in found]


@pytest.mark.parametrize(
    ("domain", "lo", "hi"),
    [
        ("n <= m", [], ["m"]),
        ("n < m", [], ["m - 1"]),
        ("m >= n", [], ["m"]),
        ("n <= m and m - n < 5", ["m - 4"], ["m"]),
        ("not n > 2 * m + 1", [], ["2*m + 1"]),
        ("not n >= m", [], ["m - 1"]),
        ("not n <= m", ["m + 1"], []),
        ("not n < m", ["m"], []),
        ("n == 3", ["3"], ["3"]),
        ("-n <= m", ["-1*m"], []),
        ("m <= -(n - 2)", [], ["-1*m + 2"]),
        ("3 * m < (-1) * n", [], ["-3*m - 1"]),
        ("n - m + k <= 0 and n + m < 7", [], ["m - 1*k", "-1*m + 6"]),
        ("n <= 8", [], ["8"]),
        ("2 * n <= m", [], []),  # a step of two: no bound of n alone
        ("n <= m or n < 3", [], []),
        ("x[n] <= 0.0", [], []),
        ("n * n <= m", [], []),
        ("n <= 1.5", [], []),
    ],
)
def test_bounds_of_a_domain(domain: str, lo: list[str], hi: list[str]) -> None:
    low, high = bounds(parse(domain), "n")
    assert (words(low), words(high)) == (lo, hi)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_position_of_a_domain_is_within_its_bounds(data: st.DataObject) -> None:
    number = st.integers(-4, 4)
    sides = [
        " + ".join(f"{data.draw(number)} * {a}" for a in "nm") + f" + {data.draw(number)}"
        for _ in range(2)
    ]
    sign = data.draw(st.sampled_from(["<=", "<", ">=", ">", "=="]))
    condition = f"{sides[0]} {sign} {sides[1]}"
    low, high = bounds(parse(condition), "n")
    for m in range(6):
        for n in range(6):
            if eval(condition, {"n": n, "m": m}):
                for i in low:
                    assert n >= i.offset + sum(c * m for _, c in i.terms)
                for i in high:
                    assert n <= i.offset + sum(c * m for _, c in i.terms)


def iterations(
    text: str, lines: Sequence[str], tile: int = 4
) -> dict[str, tuple[list[str], list[str]]]:
    """The bounds of every loop that has some."""
    shapes = {"Q": "mk", "K": "nk", "V": "nh", "X": "mn"}
    results = [line[0] for line in lines if line[0] in "RZO"]
    of = program(chain(dict.fromkeys("mnkh", 16), shapes, lines, results))
    plan = Plan(of, expression(text), frozenset("k") & set(of.chain._axes))
    found = loops(plan.schedule(dict.fromkeys(plan.axes, tile)).body)
    return {x.axis: (words(x.lo), words(x.hi)) for x in found if x.lo or x.hi}


CAUSAL = [
    "S[m, n] = sum[k] Q[m, k] * K[n, k]",
    "R[m] = max[n] S[m, n] where n <= m",
    "P[m, n] = exp(S[m, n] - R[m])",
    "Z[m] = sum[n] P[m, n] where n <= m",
    "O[m, h] = sum[n] P[m, n] * V[n, h] where n <= m",
]


def test_a_causal_loop_ends_at_the_diagonal() -> None:
    assert iterations("mh.nk", CAUSAL) == {"n": ([], ["m"])}


def test_a_loop_around_the_diagonal_takes_every_iteration() -> None:
    """Inside an iteration of n stand all of m, so a share of the iterations would be too low an
    estimate."""
    assert iterations("nm", ["R[m] = max[n] X[m, n] where n <= m"]) == {}
    c = chain({"m": 16, "n": 16}, {"X": "mn"}, ["R[m] = max[n] X[m, n] where n <= m"])
    plan = Plan(program(c), expression("nm"), frozenset())
    _, counted = interpret(plan.schedule({"m": 4, "n": 4}), inputs(c))
    moved = sum(counted.loaded.values()) + sum(counted.stored.values())
    assert traffic(plan, np.asarray([[4, 4]])) == [4 * moved]


def test_every_reduction_of_the_loop_must_agree() -> None:
    wider = [*CAUSAL[:-1], CAUSAL[-1].replace("n <= m", "n <= m + 1")]
    assert iterations("mh.nk", wider) == {}
    window = [line.replace("n <= m", "n <= m and m - n < 3") for line in CAUSAL[:-1]]
    assert iterations("mh.nk", [*window, CAUSAL[-1]]) == {"n": ([], ["m"])}


def test_a_loop_that_stores_takes_every_iteration() -> None:
    stored = chain(
        {"m": 16, "n": 16},
        {"X": "mn", "S": "mn", "Z": "m"},
        ["S[m, n] = X[m, n] * 2.0", "Z[m] = sum[n] S[m, n] where n <= m"],
        ["S", "Z"],
    )
    plan = Plan(program(stored), expression("m.n"), frozenset())
    assert not any(x.hi for x in loops(plan.schedule({"m": 4, "n": 4}).body))


def test_what_is_read_after_the_loop_is_computed_in_every_iteration() -> None:
    lines = ["R[m] = max[n] X[m, n] where n <= m", "Y[m, n] = exp(X[m, n] - R[m])"]
    assert iterations("m.n", lines) == {"n": ([], ["m"])}  # Y walks a loop of its own
    total = [
        "E[m, n] = exp(X[m, n])",
        "R[m] = sum[n] E[m, n] where n <= m",
        "Y[m, n] = E[m, n] / R[m]",
    ]
    assert iterations("m.n", total).get("n", ([], []))[1] in ([], ["m"])


@pytest.mark.parametrize("tile", [1, 3, 4, 5, 16])
def test_iterations_outside_the_domain_move_nothing(tile: int) -> None:
    c = named("attention", dict.fromkeys("bmnkhpc", 16))
    plan = Plan(program(c), expression("mh.nk"), frozenset("kh"))
    schedule = plan.schedule({"m": tile, "n": tile, "k": 16, "h": 16})
    _, counted = interpret(schedule, inputs(c))
    rows = np.arange(16)
    last = np.minimum((rows // tile + 1) * tile, 16) - 1  # of the rows' tile
    first = rows % tile == 0
    reached = np.minimum((last // tile + 1) * tile, 16)[first]
    assert counted.loaded["K"] == 16 * 16 * reached.sum()
