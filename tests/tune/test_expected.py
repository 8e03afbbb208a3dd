"""The candidates that a search has, and what the model expects of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.backend import Backend
from mcfuser.backends.cpu.backend import CPU
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import from_text
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, device_named
from mcfuser.space.prune import Space
from mcfuser.tune import expected
from mcfuser.tune.tuned import TuneOptions
from tests.support.chains import depthwise

H200 = CATALOGUE["nvidia/h200"]
CPUS = device_named("cpu")
CHAIN = from_text("gemm:1,512,256,64,64", "float16")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every space is a large one, and nothing is known of any."""
    monkeypatch.setattr("mcfuser.space.candidates.MANY", 0)
    for kept in (
        expected._listed, expected._every, expected._promising, expected._expected,
        expected.estimated, expected._looked_at,
    ):  # fmt: skip
        monkeypatch.setattr(expected, kept.__name__, kept.__wrapped__)
    monkeypatch.setattr(expected, "least_times", lambda _, count, here: here(range(count)))


@pytest.mark.thorough
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("measured", [True, False])
def test_the_best_candidates_of_a_large_space_are_listed(measured: bool) -> None:
    """A fraction of all; the price of the chain is that of the whole space."""
    whole = expected.all_candidates(CHAIN, H200, TuneOptions(), CUDA)
    listed = expected.listed(CHAIN, H200, TuneOptions(), CUDA, measured)
    assert len(listed) < len(whole) / 2
    rows = {tuple(r) for r in listed.rows.tolist()}
    if measured:
        best = np.argsort(whole.estimates(whole.rows, CUDA.estimate))[:50]
        plans = {(str(whole.plan(r)[0].expression), *r[1:].tolist()) for r in whole.rows[best]}
        kept = {(str(listed.plan(r)[0].expression), *r[1:]) for r in rows}
        assert plans <= kept
    price = float(whole.estimates(whole.rows, CUDA.estimate).min())
    found = expected.expected(CHAIN, H200, TuneOptions(), CUDA, measured)
    assert found == pytest.approx(price) if measured else found >= price


def test_what_is_promising_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a price, for a search, and for what may be used without a measurement."""
    asked = list[str]()

    def looked_at(space: Space, *rest: object) -> None:
        asked.append(space.program.chain.name)

    monkeypatch.setattr(expected, "looked_at", looked_at)
    chain = replace(CHAIN, name="found_once")
    price = expected.expected(chain, H200, TuneOptions(), CUDA)
    for measured in (True, False):
        assert len(expected.listed(chain, H200, TuneOptions(), CUDA, measured))
    assert asked == ["found_once"] and price > 0


def test_a_small_space_is_listed_whole() -> None:
    whole = expected.all_candidates(CHAIN, H200, TuneOptions(), CUDA)
    listed = expected.listed(CHAIN, H200, TuneOptions(), CUDA)
    assert listed is whole  # listed once
    unmeasured = expected.listed(CHAIN, H200, TuneOptions(), CUDA, measured=False)
    assert 0 < len(unmeasured) < len(whole)


@pytest.mark.parametrize(("backend", "device", "size"), [(CUDA, H200, 1), (CPU, CPUS, 7)])
def test_windows_are_walked_by_threads_and_taken_whole_by_a_core(
    backend: Backend, device: Device, size: int
) -> None:
    """Where rule 4 has thinned the tiles, too, and in the candidates that are searched."""
    found = expected.listed(depthwise(), device, TuneOptions(), backend)
    at = [1 + found.space.axes.index(a) for a in "ks"]
    assert len(found) and set(found.rows[:, at].flat) == {size}
