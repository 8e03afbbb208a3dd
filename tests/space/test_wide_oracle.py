"""Random chains of every class: schedules and the reference mean what the plain evaluator finds.

`pytest tests/space/test_wide_oracle.py --cases 10000` runs it for longer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json
from mcfuser.errors import ChainError
from mcfuser.space.expression import bind, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan, splits
from mcfuser.space.program import Program, program
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, statements
from tests.support import plain
from tests.support.wide_chains import MODES, Case, drawn, facts, values, wide

CASES = 90
VISITS = 1024
TOLERANCE = 1e-9
ROUNDING, UNSTEADY = 1e-14, 1e-10
"""How far each operation is moved, and how far a result that is compared may then move."""

Results = Mapping[str, np.ndarray]


# --- what can be compared -------------------------------------------------------------------


def agree(chain: Chain, inputs: Results, expected: Results, found: Results) -> None:
    """The same values, and none that is finite where something infinite is expected."""
    for name, array in found.items():
        wrong = ~_close(expected[name], array, TOLERANCE)
        if wrong.any():
            wrong &= _steady(chain, inputs, expected)[name]
        at = tuple(int(i[0]) for i in np.nonzero(wrong)) if wrong.any() else ()
        assert not wrong.any(), f"{name}{at}: {array[at]} instead of {expected[name][at]}"


def _beyond(array: np.ndarray) -> bool:
    """A number below the lowest of float32, at which a maximum starts: such are infinite there."""
    return bool((np.isfinite(array) & (array < plain.LOWEST_REAL)).any())


def _close(expected: np.ndarray, found: np.ndarray, tolerance: float) -> np.ndarray:
    """Where values are the same, but for a part of the largest; what is infinite may be no number
    (a sum of infinities in another order), and what is no number may be any."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        scale = np.abs(expected[finite]).max(initial=0.0)
        near = finite & (np.abs(found - expected) <= tolerance * scale)
        same = near | (found == expected) | np.isnan(expected)
        return same | (np.isinf(expected) & np.isnan(found))


def _steady(chain: Chain, inputs: Results, expected: Results) -> dict[str, np.ndarray]:
    """The elements that stay when every operation is rounded a little differently, and casts of
    what is too large become another number."""
    kept = {n: (np.abs(a) < 1e300) | np.isinf(a) for n, a in expected.items()}
    exact, outside = plain.FUNCTIONS, plain.outside
    for seed in range(3):
        try:
            plain.FUNCTIONS = {op: _noisy(op, f, seed) for op, f in exact.items()}
            plain.outside = lambda dtype, seed=seed: (seed - 1) * (1 + plain.LOWEST[dtype])
            moved = plain.plain(chain, inputs)
        finally:
            plain.FUNCTIONS, plain.outside = exact, outside
        for name in kept:
            kept[name] &= _close(expected[name], moved[name], UNSTEADY)
    return kept


def _noisy(op: str, function: Callable[..., plain.Value], seed: int) -> Callable[..., plain.Value]:
    """The function with an error that its arguments determine, so that equal terms stay equal; the
    other infinity where it divides by zero, whose sign means nothing."""

    def moved(*args: plain.Value) -> plain.Value:
        found = function(*args)
        if op == "div" and args[1] == 0 and seed % 2:
            return -found
        if not isinstance(found, float) or not math.isfinite(found):
            return found
        share = hash((seed, op, *args)) % 200003 / 100001 - 1
        size = max(map(abs, args)) if op in ("add", "sub") else abs(found)
        return found + ROUNDING * share * size if math.isfinite(size) else found

    return function if op in ("max", "min", "neg", "abs", "floor", "round", "select") else moved


# --- schedules ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Placed:
    """A case, a schedule of it where there is one, and inputs."""

    case: Case
    schedule: Schedule | None
    seed: int
    mode: str

    def __repr__(self) -> str:
        text = f"\n{self.schedule.expression}\n{self.schedule}" if self.schedule else ""
        return f"{self.case}{self.mode}, seed {self.seed}{text}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints of a failing one."""
        printer.text(repr(self))


@st.composite
def placed(draw: st.DrawFn) -> Placed:
    case, mode = draw(wide()), draw(st.sampled_from(MODES))
    seed = draw(st.integers(0, 1000))
    rng = draw(st.randoms(use_true_random=False))
    return Placed(case, schedule_of(case, rng), seed, mode)


def schedule_of(case: Case, rng: Random) -> Schedule | None:
    """Some schedule; none where the chain or the candidate is refused."""
    try:
        found = _schedule(program(case.chain), rng)
    except (ChainError, Illegal):
        return None
    return found.at(case.extents) if case.extents else found


def _schedule(ready: Program, rng: Random) -> Schedule:
    every = tilings(ready.chain)
    expression = every[rng.randrange(len(every))]
    if rng.randrange(4):
        expression = bind(ready.chain, expression)
    names = Plan(ready, expression, frozenset()).axes
    tiles = {a: _tile(rng, ready.chain.size(a)) for a in names}
    while True:
        dead = frozenset(a for a, n in tiles.items() if n >= ready.chain.size(a))
        plan = Plan(ready, expression, dead)
        schedule = plan.schedule(tiles)
        if _visits(schedule) <= VISITS:
            break
        most = max(tiles, key=lambda a: ready.chain.size(a) / tiles[a])
        tiles[most] = min(2 * tiles[most], ready.chain.size(most))
    ways = splits(plan)
    if ways and rng.randrange(2):
        way = ways[rng.randrange(len(ways))]
        schedule = replace(plan, split=way, parts=rng.randrange(2, 5)).schedule(tiles)
    return schedule


def _tile(rng: Random, extent: int) -> int:
    trips = (1, 2, 2, 3, 3, 4)[rng.randrange(6)]
    return min(extent, max(1, -(-extent // trips) + (0, 0, 1, -1)[rng.randrange(4)]))


def _visits(schedule: Schedule) -> int:
    """An upper bound of how often a statement runs."""
    counts = (
        [schedule.parts if x.kind == "split" else schedule.trips(x.axis) for x in outer]
        for _, outer in statements(schedule.body)
    )
    return sum(math.prod(c) for c in counts)


# --- tests ----------------------------------------------------------------------------------


def test_every_schedule_and_the_reference_compute_what_the_chain_means(
    request: pytest.FixtureRequest,
) -> None:
    cases = request.config.getoption("--cases") or CASES
    seen: Counter[str] = Counter()

    @settings(
        max_examples=cases,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(placed())
    def run(one: Placed) -> None:
        chain = one.case.fixed
        inputs = {
            n: a if a.dtype.kind in "ib" else a.astype(np.float64)
            for n, a in values(chain, one.seed, one.mode).items()
        }
        expected = plain.plain(chain, inputs)
        if any(_beyond(array) for array in expected.values()):
            return
        agree(chain, inputs, expected, evaluate(chain, inputs))
        if one.schedule is not None:
            agree(chain, inputs, expected, interpret(one.schedule, inputs)[0])
            seen["scheduled"] += 1
        seen["all"] += 1

    run()
    assert seen["scheduled"] >= 0.9 * seen["all"]


CLASSES = (
    "several outputs", "no product", "products", "positions", "select", "casts", "read twice",
    "shifted", "sum of axes", "constant index", "run time", "strides of inputs",
    "repeated elements", "offset", "strides of outputs", "whole inputs", "whole results",
    "bool inputs", "bool results", "half inputs", "half results", "two reduced axes",
    "rolled maximum", "rolled sum", "moving sum", "maximum of a moving sum", "other axis",
    "strict subset", "domain over positions", "domain reads", "map read by several",
    "narrow inputs", "narrow results",
)  # fmt: skip


def test_every_class_is_drawn_and_most_results_are_numbers() -> None:
    seen: Counter[str] = Counter()
    for seed in range(500):
        case = drawn(Random(seed))
        seen.update(facts(case))
        if seed % 5 == 0:
            chain = case.fixed
            found = plain.plain(chain, values(chain, seed, MODES[seed // 5 % len(MODES)]))
            seen["finite"] += all(np.isfinite(found[o]).all() for o in chain.outputs)
    assert seen["finite"] >= 90
    rare = {kind: seen[kind] for kind in CLASSES if seen[kind] < 0.05 * seen["all"]}
    assert not rare


def means(lines: list[str], x: list[float], **tensors: dict[str, object]) -> np.ndarray:
    """The last line's result for an input X over the axis m."""
    document = {
        "axes": {"m": len(x)},
        "tensors": {"X": {"shape": ["m"], "dtype": "float64"}, **tensors},
        "operators": lines,
    }
    chain = from_json(document)
    return plain.plain(chain, {"X": np.array(x)})[chain.outputs[0]]


INF, NAN = math.inf, math.nan
FORMS = {
    "log(X[m])": (-INF, NAN, 0.0, INF),
    "1.0 / X[m]": (INF, -0.5, 1.0, 0.0),
    "exp(1000.0 * X[m])": (1.0, 0.0, INF, INF),
    "0.0 * X[m]": (0.0, 0.0, 0.0, NAN),
    "sqrt(X[m])": (0.0, NAN, 1.0, INF),
    "pow(X[m], -1.0)": (INF, -0.5, 1.0, 0.0),
    "X[m] ** 0.5": (0.0, NAN, 1.0, INF),
    "select(X[m] - 1.0, X[m], 7)": (0.0, -2.0, 7.0, INF),
    "floor(m / 2)": (0.0, 0.0, 1.0, 1.0),
    "(X[m] > 0.0) + (X[m] > 0.5)": (0.0, 0.0, 2.0, 2.0),
    "int32(m * -0.75)": (0.0, 0.0, -1.0, -2.0),
    "bool(X[m]) + 1": (1.0, 2.0, 2.0, 2.0),
    "max(X[m], m)": (0.0, 1.0, 2.0, INF),
}


@pytest.mark.parametrize("form", FORMS)
def test_plain_values_are_those_of_ieee_and_of_whole_numbers(form: str) -> None:
    np.testing.assert_array_equal(means([f"Y[m] = {form}"], [0.0, -2.0, 1.0, INF]), FORMS[form])


def test_plain_quotients_by_sums_are_zero_where_their_numerator_is() -> None:
    lines = ["S[] = sum[m] X[m]", "T[m] = X[m] / (S[()] * 0.0)"]
    np.testing.assert_array_equal(means(lines, [0.0, 1.0, -1.0]), [0.0, INF, -INF])


def test_plain_reductions_of_nothing_are_their_identities() -> None:
    nothing = " where m < 0"
    assert means([f"S[] = sum[m] X[m]{nothing}"], [1.0, 2.0]) == 0
    assert means([f"S[] = max[m] X[m]{nothing}"], [1.0, 2.0]) == plain.LOWEST_REAL
    whole: dict[str, object] = {"shape": [], "dtype": "int32"}
    assert means([f"S[] = max[m] X[m]{nothing}"], [1.0, 2.0], S=whole) == -(2**31)
    assert means(["S[] = sum[m] X[m]"], [1.9, -1.9, 2.5], S=whole) == 2
    assert means(["S[] = max[m] X[m]"], [-INF]) == plain.LOWEST_REAL
