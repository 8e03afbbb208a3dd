"""The oracle over random chains: every schedule means what its chain means, and costs what it says.

`pytest tests/space/test_oracle.py --cases 100000` runs it for longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcfuser.chain import LOWEST, Axis, Bounds, Chain, fixed
from mcfuser.expr import Affine
from mcfuser.space.count import count
from mcfuser.space.expression import bind, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan, splits
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Statement,
    StorePartial,
    loops,
    statements,
)
from tests.support.random_chains import cases

VISITS = 4096
CASES = 60


@dataclass(frozen=True, repr=False)
class Placed:
    """A chain with the extents at hand, and a schedule of it."""

    chain: Chain
    schedule: Schedule
    products: int

    def __repr__(self) -> str:
        extents = {a.name: a.extent for a in self.chain.axes}
        return f"\n{extents}\n{self.chain}\n{self.schedule.expression}\n{self.schedule}\n"


@st.composite
def placed(draw: st.DrawFn) -> Placed:
    case = draw(cases())
    chain, values = case.chain, {}
    if draw(st.integers(0, 9)) == 0:  # an extent known at run time only
        name, extent = "m", chain.size("m")
        axes = (Axis(a.name, Bounds(1, extent)) if a.name == name else a for a in chain.axes)
        chain, values = replace(chain, axes=tuple(axes)), {name: draw(st.integers(1, extent))}
    ready = program(chain)
    every = tilings(ready.chain)
    expression = every[draw(st.integers(0, len(every) - 1))]
    if draw(st.integers(0, 3)):
        expression = bind(ready.chain, expression)
    tiles = {a: _tile(draw, ready.chain.size(a)) for a in Plan(ready, expression, frozenset()).axes}
    while True:
        dead = frozenset(a for a, n in tiles.items() if n >= ready.chain.size(a))
        plan = Plan(ready, expression, dead)
        schedule = plan.schedule(tiles)
        if visits(schedule) <= VISITS // 4:
            break
        most = max(tiles, key=lambda a: ready.chain.size(a) / tiles[a])
        tiles[most] = min(2 * tiles[most], ready.chain.size(most))
    ways = splits(plan)
    if ways and draw(st.booleans()):
        plan = replace(plan, split=draw(st.sampled_from(ways)), parts=draw(st.integers(2, 4)))
        schedule = plan.schedule(tiles)
    return Placed(fixed(chain, values), schedule.at(values) if values else schedule, case.products)


def _tile(draw: st.DrawFn, extent: int) -> int:
    trips = draw(st.sampled_from([1, 2, 2, 3, 3, 4]))
    return min(extent, max(1, -(-extent // trips) + draw(st.sampled_from([0, 0, 1, -1]))))


def visits(schedule: Schedule) -> int:
    """An upper bound of how often a statement runs."""
    total = 0
    for _, outer in statements(schedule.body):
        iterations = 1
        for loop in outer:
            iterations *= schedule.parts if loop.kind == "split" else schedule.trips(loop.axis)
        total += iterations
    return total


def agree(case: Placed, seed: int = 0) -> None:
    """The interpreter finds what the chain means and counts what the schedule predicts."""
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(case.chain.shape(n)) for n in case.chain.inputs}
    expected = evaluate(case.chain, inputs)
    found, counted = interpret(case.schedule, inputs)
    predicted = count(case.schedule)
    assert counted.visits <= VISITS
    for kind in ("loaded", "stored", "shared", "gathered"):
        moved, foreseen = Counter(getattr(counted, kind)), Counter(getattr(predicted, kind))
        assert +moved == +foreseen, kind
    assert counted.padded == predicted.padded
    assert counted.flops == predicted.flops
    for name in case.chain.outputs:
        scale = np.abs(expected[name]).max() + 1e-30
        np.testing.assert_allclose(found[name] / scale, expected[name] / scale, rtol=0, atol=1e-9)


def test_every_schedule_computes_its_chain_at_the_cost_it_predicts(
    request: pytest.FixtureRequest,
) -> None:
    cases_ = request.config.getoption("--cases") or CASES
    seen: Counter[str] = Counter()

    @settings(max_examples=cases_, deadline=None, suppress_health_check=list(HealthCheck))
    @given(placed())
    def run(case: Placed) -> None:
        agree(case)
        seen.update(facts(case))

    run()
    total = seen["all"]
    assert total >= cases_ * 0.99  # a small remainder may be repetitions
    shares = {"three products": 12, "rolled": 12, "ragged": 3, "split": 60, "bounded": 60}
    for kind, share in shares.items():  # far less than the mean of many runs: few cases vary
        assert seen[kind] * share >= total, f"{kind}: {seen}"


def facts(case: Placed) -> Iterator[str]:
    schedule = case.schedule
    yield "all"
    if case.products == 3:
        yield "three products"
    if any(isinstance(s, Repair) for s, _ in statements(schedule.body)) or any(
        isinstance(s, Combine) and s.repairs for s, _ in statements(schedule.body)
    ):
        yield "rolled"
    if any(schedule.ragged(a.name) for a in schedule.chain.axes):
        yield "ragged"
    if schedule.split is not None:
        yield "split"
    if any(loop.lo or loop.hi for loop in loops(schedule.body)):
        yield "bounded"


# --- ten bugs, each of which the oracle must find -------------------------------------------

Bug = Callable[[tuple[Statement, ...]], tuple[Statement, ...]]


def change(
    body: tuple[Statement, ...], edit: Callable[[Statement], tuple[Statement, ...]]
) -> tuple[Statement, ...]:
    """The statements, each replaced by what `edit` makes of it."""
    found: list[Statement] = []
    for s in body:
        found += edit(replace(s, body=change(s.body, edit)) if isinstance(s, Loop) else s)
    return tuple(found)


def load_too_far_out(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Loads leave the serial loop that they are in."""

    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop) or s.kind != "serial":
            return (s,)
        loads = tuple(x for x in s.body if isinstance(x, Load))
        return (*loads, replace(s, body=tuple(x for x in s.body if x not in loads)))

    return change(body, edit)


def dropped(kind: type[Statement], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return change(body, lambda s: () if isinstance(s, kind) else (s,))


def mask_dropped(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return change(body, lambda s: (replace(s, domain=None) if isinstance(s, Compute) else s,))


def start_of_a_maximum_at_zero(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return change(
        body,
        lambda s: (replace(s, value=0.0) if isinstance(s, Init) and s.value == LOWEST else s,),
    )


def start_in_every_turn(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """What is set before a loop is set again in each of its iterations."""

    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop):
            return (s,)
        items = list(s.body)
        for i, x in enumerate(items[:-1]):
            after = items[i + 1]
            if isinstance(x, Init) and isinstance(after, Loop):
                items[i + 1] = replace(after, body=(x, *after.body))
        return (replace(s, body=tuple(items)),)

    return change(body, edit)


def old_value_kept_too_late(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop):
            return (s,)
        late = tuple(x for x in s.body if isinstance(x, SaveOld))
        rest = [x for x in s.body if x not in late]
        at = next((i for i, x in enumerate(rest) if isinstance(x, Repair)), len(rest))
        return (replace(s, body=(*rest[:at], *late, *rest[at:])),)

    return change(body, edit)


def loop_ends_early(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop) or not s.hi:
            return (s,)
        return (replace(s, hi=tuple(Affine(i.terms, i.offset - 3) for i in s.hi)),)

    return change(body, edit)


def combined_before_it_is_known(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """What a combine needs is combined only after it."""

    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop):
            return (s,)
        combines = [x for x in s.body if isinstance(x, Combine)]
        turned = iter(combines[::-1])
        return (replace(s, body=tuple(next(turned) if x in combines else x for x in s.body)),)

    return change((Loop("root", "serial", body),), edit)[0].body  # type: ignore[union-attr]


def combined_without_repair(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return change(body, lambda s: (replace(s, repairs=()) if isinstance(s, Combine) else s,))


def stored_in_every_turn(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """A part shares what it has inside its loop instead of after it."""

    def edit(s: Statement) -> tuple[Statement, ...]:
        if not isinstance(s, Loop) or s.kind != "split":
            return (s,)
        shares = tuple(x for x in s.body if isinstance(x, StorePartial))
        rest = [x for x in s.body if x not in shares]
        if rest and isinstance(rest[-1], Loop):
            rest[-1] = replace(rest[-1], body=(*rest[-1].body, *shares))
        return (replace(s, body=tuple(rest)),)

    return change(body, edit)


BUGS: dict[str, Bug] = {
    "load too far out": load_too_far_out,
    "repair left out": partial(dropped, Repair),
    "old value not kept": partial(dropped, SaveOld),
    "old value kept too late": old_value_kept_too_late,
    "mask dropped": mask_dropped,
    "maximum starts at zero": start_of_a_maximum_at_zero,
    "start in every turn": start_in_every_turn,
    "loop ends early": loop_ends_early,
    "combined in the wrong order": combined_before_it_is_known,
    "combined without repair": combined_without_repair,
    "shared in every turn": stored_in_every_turn,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(BUGS))
def test_the_oracle_finds(name: str) -> None:
    """Each bug is planted into every random schedule that it applies to, until one disagrees."""

    @settings(
        max_examples=1000,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(placed())
    def run(case: Placed) -> None:
        body = BUGS[name](case.schedule.body)
        if body == case.schedule.body:
            return
        try:
            agree(replace(case, schedule=replace(case.schedule, body=body)))
        except (AssertionError, KeyError, ValueError, IndexError) as error:
            raise Found from error

    with pytest.raises(Found):
        run()


class Found(Exception):
    """A planted bug that the oracle has seen."""
