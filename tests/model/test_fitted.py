"""The fitted model: its fit, its scaling to other devices, and the times it foresees."""

from __future__ import annotations

import numpy as np
import pytest

from judge import known
from landscape import read, whole
from mcfuser.backends.cuda.backend import counted
from mcfuser.chain import attention, gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.fitted import MEMORY, NAMES, FitSample, costs, fit, predicted
from mcfuser.model.groups import PACED
from mcfuser.model.terms import Terms
from mcfuser.space.plan import blocks
from tests.support.gpu_candidates import settings
from tests.support.gpu_candidates import times as seconds
from tests.support.paths import LANDSCAPES

H200 = CATALOGUE["nvidia/h200"]


def sample(events, known) -> FitSample:
    dram_seconds = np.zeros(len(events))
    return FitSample(events, dram_seconds, predicted(events, dram_seconds, known))


def test_a_fit_explains_times_by_the_constants_behind_them() -> None:
    rng = np.random.default_rng(0)
    true = {NAMES[0]: 1e-6, NAMES[3]: 2e-7, NAMES[7]: 5e-9}
    events = np.zeros((400, len(NAMES)))
    events[:, [0, 3, 7]] = rng.integers(1, 50, (400, 3)) * np.array([1, 5, 200])
    found = fit([sample(events, true)])
    assert set(found) == {*true, MEMORY}
    for name, value in true.items():
        assert found[name] == pytest.approx(value, rel=0.02)


def test_memory_overlaps_with_the_rest_but_not_with_the_launch() -> None:
    rng = np.random.default_rng(2)
    events, dram_seconds = np.zeros((300, len(NAMES))), rng.uniform(1e-6, 1e-4, 300)
    iterations = rng.uniform(1, 100, 300)
    events[:, NAMES.index("launch")], events[:, NAMES.index("turn")] = 1, iterations
    true = {"launch": 1e-6, "turn": 1e-6, MEMORY: 1.3}
    times = predicted(events, dram_seconds, true)
    assert (times >= 1e-6 + np.maximum(iterations * 1e-6, 1.3 * dram_seconds)).all()
    assert (times < 1e-6 + iterations * 1e-6 + 1.3 * dram_seconds).all()
    found = fit([FitSample(events, dram_seconds, times)])
    assert {n: found[n] for n in ("turn", MEMORY)} == pytest.approx(
        {n: true[n] for n in ("turn", MEMORY)}, rel=0.05
    )


def test_every_constant_is_positive() -> None:
    rng = np.random.default_rng(1)
    events = rng.random((100, len(NAMES)))
    found = fit([FitSample(events, np.zeros(100), rng.random(100) + 0.1)])
    assert all(0 < v < 10 for v in found.values())


def test_a_slower_device_takes_longer() -> None:
    fast, slow = costs(H200), costs(CATALOGUE["nvidia/l4"])
    assert slow["lines"] > fast["lines"] and slow["group_all"] > fast["group_all"]
    assert slow["launch"] == fast["launch"]


@pytest.mark.parametrize("chain", [gemm(1, 512, 512, 256, 256, "float16"),
                                   attention(8, 256, 256, 64, 64, "float16")])  # fmt: skip
def test_every_candidate_has_a_time(chain) -> None:
    found = whole(chain, H200)
    times = seconds(found)
    assert np.isfinite(times).all() and times.min() > 1e-7 and times.max() < 1
    plan, _ = found.plan(found.candidate(0))
    assert blocks(plan, found.rows[:1, 1:-1])[0] >= 1


def test_groups_have_terms_of_their_own() -> None:
    chain = attention(16, 512, 512, 64, 64, "float16")
    homogeneous, grouped = whole(chain, H200), whole(chain, H200, groups=True)
    assert not settings(homogeneous, "groups").any() and settings(grouped, "groups").all()
    own = [n in PACED for n in NAMES]
    for found, wanted in ((homogeneous, np.logical_not(own)), (grouped, np.asarray(own))):
        plan, tiles = found.plan(found.candidate(0))
        row = np.asarray([[*tiles.values()]])
        events, _ = counted(H200, plan, row, found.table.columns(found.rows[:1, -1]))
        assert events[0, wanted].any() and not events[0, ~wanted].any()


def test_blocks_of_unequal_length_fill_the_gaps_that_others_leave() -> None:
    found = Terms(3, blocks=np.full(3, 40.0), peak=np.array([1.0, 1.9, 7.0]))
    assert found.queue(16).tolist() == [3.0, 2.5, 7.0]
    assert found.queue(np.array([16.0, 32.0, 4.0])).tolist() == [3.0, 1.9, 10.0]


def test_twice_the_heads_are_not_faster() -> None:
    one, two = (whole(attention(h, 512, 512, 64, 64, "float16"), H200) for h in (16, 64))
    best = [seconds(f).min() for f in (one, two)]
    assert best[1] > best[0]


@pytest.mark.thorough
def test_the_catalogue_s_constants_are_those_of_the_landscapes() -> None:
    samples = [known(read(path)).sample for path in sorted(LANDSCAPES.glob("*.json"))]
    found = fit(samples)
    for s in samples:
        kept, anew = (predicted(s.events, s.dram_seconds, c) for c in (dict(H200.costs), found))
        assert np.median(np.abs(np.log(kept / anew))) < 0.03
