"""The fitted model: its fit, its scaling to other devices, and how it ranks what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mcfuser.bench.judge import judge, known, pearson, ranks
from mcfuser.bench.landscape import Landscape, Point, read, whole, write
from mcfuser.chain import attention, gemm
from mcfuser.device import CATALOGUE
from mcfuser.lowerings import predict
from mcfuser.model.fitted import NAMES, costs, fit
from mcfuser.space.plan import blocks

H200 = CATALOGUE["nvidia/h200"]
DATA = Path(__file__).parent.parent / "benchmarks" / "data" / "h200"


def test_a_fit_finds_the_constants_behind_the_times() -> None:
    rng = np.random.default_rng(0)
    true = np.zeros(len(NAMES))
    true[[0, 3, 7]] = 1e-6, 2e-7, 5e-9
    events = rng.integers(1, 50, (400, len(NAMES))).astype(float)
    found = fit([(events, events @ true)])
    for name, value in zip(NAMES, true, strict=True):
        assert found.get(name, 0.0) == pytest.approx(value, rel=0.02, abs=2e-10)


def test_no_constant_is_negative() -> None:
    rng = np.random.default_rng(1)
    events = rng.random((100, len(NAMES)))
    assert all(v > 0 for v in fit([(events, rng.random(100) + 0.1)]).values())


def test_a_slower_device_takes_longer() -> None:
    fast, slow = costs(H200), costs(CATALOGUE["nvidia/l4"])
    assert slow["bytes"] > fast["bytes"] and slow["group_all"] > fast["group_all"]
    assert slow["launch"] == fast["launch"]


@pytest.mark.parametrize("chain", [gemm(1, 512, 512, 256, 256, "float16"),
                                   attention(8, 256, 256, 64, 64, "float16")])  # fmt: skip
def test_every_candidate_has_a_time(chain) -> None:
    found = whole(chain, H200)
    times = found.each(found.rows, lambda *a: predict(H200, *a))
    assert np.isfinite(times).all() and times.min() > 1e-7 and times.max() < 1
    plan, _ = found.plan(found.candidate(0))
    assert blocks(plan, found.rows[:1, 1:-1])[0] >= 1


def test_twice_the_heads_are_not_faster() -> None:
    one, two = (whole(attention(h, 512, 512, 64, 64, "float16"), H200) for h in (16, 64))
    best = [f.each(f.rows, lambda *a: predict(H200, *a)).min() for f in (one, two)]
    assert best[1] > best[0]


def test_what_was_measured_is_ranked() -> None:
    """On landscapes that the fit has not seen."""
    found = [known(read(DATA / f"{n}.json")) for n in ("G1", "G2", "G4", "S4", "S9", "G10")]
    verdicts = {(v.landscape, v.model): v for v in judge(found)}
    for k in found:
        name = k.landscape.name
        mine = verdicts[name, "fitted to the others"]
        assert mine.spearman > 0.75 and mine.top < 1.1
        assert mine.spearman > verdicts[name, "equation (2)"].spearman


def test_a_landscape_survives_its_file(tmp_path) -> None:
    points = (
        Point("mh.nk", (64, 64, 64, 16), 4, 2, "last", "n", 2, 49152, 82, 0, 2.5e-6, 3e-4),
        Point("mh.nk", (64, 64, 64, 16), 4, 1, failed="it says \"no\""),
    )  # fmt: skip
    one = Landscape("G1", "gemm:1,512,256,64,64", "float16", H200, {"sm_mhz": 1980}, points)
    write(tmp_path / "G1.json", one)
    assert read(tmp_path / "G1.json") == one
    assert replace(one, name="X") != one


def test_ranks_and_correlation() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    a = np.array([1.0, 2.0, 3.0])
    assert pearson(a, 2 * a + 1) == pytest.approx(1)
    assert pearson(a, -a) == pytest.approx(-1)
    assert pearson(a, np.ones(3)) == 0
