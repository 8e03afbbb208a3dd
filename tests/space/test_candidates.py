"""Rows of numbers that stand for candidates: which plan a row is, one question for each plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mcfuser.device import CATALOGUE
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.plan import Ints, Plan
from mcfuser.space.prune import distinct, parted, prune, space
from tests.support.chains import named

H200 = CATALOGUE["nvidia/h200"]
LOWERINGS = 2


@pytest.fixture(scope="module")
def found() -> Candidates:
    whole = space(named("gemm", dict.fromkeys("bmnkhpc", 64) | {"b": 1}))
    ready = parted(distinct(prune(whole, H200)[0]), H200)

    def both(plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
        which = np.tile(np.arange(len(tiles)), LOWERINGS)
        return which, np.repeat(np.arange(LOWERINGS), len(tiles))

    return candidates(ready, both)


def test_every_tile_of_every_plan_is_there_under_every_lowering(found: Candidates) -> None:
    tiles = sum(len(t) for _, t in found.space.tables or ())
    assert len(found) == LOWERINGS * tiles > 100
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
    asked = []

    def predict(plan: Plan, tiles: Ints, lowerings: Ints) -> np.ndarray:
        asked.append((plan, len(tiles)))
        assert len(tiles) == len(lowerings)
        return tiles.sum(axis=1) + 1000.0 * lowerings

    rows = found.rows[np.random.default_rng(1).permutation(len(found))]
    times = found.each(rows, predict)
    np.testing.assert_array_equal(times, rows[:, 1:-1].sum(axis=1) + 1000.0 * rows[:, -1])
    plans = [p for p, _ in asked]
    assert len({(str(p.expression), p.dead, p.split, p.parts) for p in plans}) == len(plans)
    assert sum(n for _, n in asked) == len(rows)


def test_no_rows_ask_nothing(found: Candidates) -> None:
    times = found.each(found.rows[:0], lambda *_: pytest.fail("asked"))
    assert len(times) == 0
