"""Rows of numbers that stand for candidates: which plan a row is, one question for each plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.candidates import (
    MANY,
    NEAR,
    Candidates,
    Estimate,
    candidates,
    least,
    looked_at,
    promising,
)
from mcfuser.space.knobs import Columns, Feasible, KnobTable, knob
from mcfuser.space.plan import Ints, Plan
from mcfuser.space.prune import Space, distinct, parted, prune, space
from tests.support.chains import named

H200 = CATALOGUE["nvidia/h200"]
SETTINGS = 2


@dataclass(frozen=True)
class OneKnob:
    unroll: int = knob(1, (1, 3))


@pytest.fixture(scope="module")
def found() -> Candidates:
    whole = space(named("gemm", dict.fromkeys("bmnkhpc", 64) | {"b": 1}))
    ready = parted(distinct(prune(whole, H200)[0]), H200)

    def all_of_them(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
        return np.ones(len(tiles), bool)

    return candidates(ready, KnobTable(OneKnob, H200), all_of_them)


def test_every_tile_of_every_plan_is_there_under_every_setting(found: Candidates) -> None:
    tiles = sum(len(t) for _, t in found.space.tables or ())
    assert len(found) == SETTINGS * tiles > 100
    assert len({*map(tuple, found.rows.tolist())}) == len(found)
    assert found.rows.shape[1] == len(found.space.axes) + 2


def test_a_row_is_the_plan_in_whose_table_its_tiles_are(found: Candidates) -> None:
    tables: Mapping[str, set[tuple[int, ...]]] = {}
    for plan, tiles in found.space.tables or ():
        key = f"{plan.expression} {sorted(plan.dead)} {plan.split} {plan.parts}"
        tables.setdefault(key, set()).update(map(tuple, tiles.tolist()))  # type: ignore[attr-defined]
    for row in np.random.default_rng(0).permutation(len(found))[:100]:
        plan, tiles = found.plan(found.candidate(row))
        key = f"{plan.expression} {sorted(plan.dead)} {plan.split} {plan.parts}"
        assert tuple(tiles[a] for a in plan.axes) in tables[key]
        assert plan.dead == {a for a in plan.dead if tiles[a] >= plan.program.chain.size(a)}


def test_a_prediction_is_asked_for_once_a_plan_and_lands_at_its_rows(found: Candidates) -> None:
    asked, plans = [], list(found.plans.values())

    def number(plan: Plan) -> float:
        return 1e6 * plans.index(plan)

    def estimate(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
        asked.append((plan, len(tiles)))
        assert len(tiles) == len(settings["unroll"]) and device == H200
        return tiles.sum(axis=1) + 1000.0 * settings["unroll"] + number(plan)

    rows = found.rows[np.random.default_rng(1).permutation(len(found))]
    times = found.estimates(rows, estimate)
    unroll = np.where(rows[:, -1] == 0, 1, 3)
    numbers = [number(found.plan(row)[0]) for row in rows]
    np.testing.assert_array_equal(times, rows[:, 1:-1].sum(axis=1) + 1000.0 * unroll + numbers)
    assert [found.settings(row).unroll for row in rows[:50]] == unroll[:50].tolist()
    assert sorted(number(p) for p, _ in asked) == sorted({*numbers})
    assert sum(n for _, n in asked) == len(rows)


def test_no_rows_ask_nothing(found: Candidates) -> None:
    times = found.estimates(found.rows[:0], lambda *_: pytest.fail("asked"))
    assert len(times) == 0


def all_feasible(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
    return np.ones(len(tiles), bool)


def by_tiles(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
    """Seconds that are the sum of a candidate's tiles; less by half with other settings."""
    return tiles.sum(axis=1) / np.where(settings["unroll"] == 1, 1.0, 2.0)


def tabled(tables: Space) -> set[tuple[str, tuple[int, ...]]]:
    found = ((f"{p.expression} {sorted(p.dead)} {p.split} {p.parts}", t) for p, t in tables.tables)  # type: ignore[union-attr]
    return {(name, tuple(row)) for name, tiles in found for row in tiles.tolist()}


def left_of(space: Space, table: KnobTable, feasible: Feasible, estimate: Estimate) -> Space:
    """The promising part of a space, all of whose plans are looked at here."""
    tables = looked_at(space, table)
    if tables is None:
        return space
    plain = KnobTable(table.kind, table.device, plain=True)
    times = [least(plan, tiles, plain, feasible, estimate) for plan, tiles in tables]
    return promising(space, table, tables, times)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcfuser.space.candidates.MANY", 100)


@pytest.mark.usefixtures("few")
def test_of_many_candidates_those_with_tiles_near_the_best_are_promising(
    found: Candidates,
) -> None:
    @dataclass(frozen=True)
    class TwoKnobs:
        warps: int = knob(1, (1, 2))
        unroll: int = knob(1, (1, 3))

    left = left_of(found.space, KnobTable(TwoKnobs, H200), all_feasible, by_tiles)
    every = tabled(found.space)
    least = min(sum(tiles) for _, tiles in every)
    assert tabled(left) == {(p, t) for p, t in every if sum(t) < NEAR * least}
    assert 0 < len(tabled(left)) < len(every)


@pytest.mark.usefixtures("few")
def test_of_many_promising_ones_the_best_stay(
    found: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = sorted(sum(tiles) for _, tiles in tabled(found.space))
    for most in (1, 2, 40):
        monkeypatch.setattr("mcfuser.space.candidates.MOST", SETTINGS * most)
        left = left_of(found.space, KnobTable(OneKnob, H200), all_feasible, by_tiles)
        assert sorted(sum(tiles) for _, tiles in tabled(left)) == every[:most]
    assert every[0] == every[1]


@pytest.mark.usefixtures("few")
def test_of_very_many_tiles_some_are_looked_at(
    found: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones each time, of all plans."""
    monkeypatch.setattr("mcfuser.space.candidates.LOOKED", 60)
    every, asked = tabled(found.space), []

    def counted(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
        asked.append(len(tiles))
        return by_tiles(plan, tiles, settings, device)

    left, again = (
        left_of(found.space, KnobTable(OneKnob, H200), all_feasible, counted) for _ in range(2)
    )
    assert sum(asked) == 2 * 60 * SETTINGS
    assert tabled(left) == tabled(again) < every and len(every) > 60
    assert len({plan for plan, _ in tabled(left)}) > 1


@pytest.mark.usefixtures("few")
def test_tiles_that_no_plain_settings_allow_are_not_promising(found: Candidates) -> None:
    def large(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
        return tiles.sum(axis=1) > 150

    left = left_of(found.space, KnobTable(OneKnob, H200), large, by_tiles)
    sums = {sum(tiles) for _, tiles in tabled(left)}
    assert min(sums) > 150 and max(sums) < NEAR * min(sums)


@pytest.mark.usefixtures("few")
def test_where_no_plain_settings_are_feasible_all_stays(found: Candidates) -> None:
    def none(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> np.ndarray:
        return settings["unroll"] == 9

    assert left_of(found.space, KnobTable(OneKnob, H200), none, by_tiles) is found.space


def test_of_few_candidates_all_stay(found: Candidates) -> None:
    assert len(found) <= MANY
    table = KnobTable(OneKnob, H200)
    left = left_of(found.space, table, all_feasible, lambda *_: pytest.fail("asked"))
    assert left is found.space
