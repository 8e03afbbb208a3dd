"""Rows of numbers that stand for candidates: which plan a row is, one question for each plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import Columns, KnobTable, knob
from mcfuser.space.plan import Ints, Plan
from mcfuser.space.prune import distinct, parted, prune, space
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
