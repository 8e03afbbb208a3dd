"""The probe: what it times, what it makes of the times, and what the model makes of those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from mcfuser.backend import Kernel
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.cuda.probe import LAUNCH, Trial, probe, trials
from mcfuser.codegen.triton import generate
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import DeviceError
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker
from mcfuser.model.fitted import GROUP, NAMES, costs
from mcfuser.space.statement import Illegal

H200, L4 = CATALOGUE["nvidia/h200"], CATALOGUE["nvidia/l4"]
RATES = {  # seconds of one unit of work, on the clock of the fake below
    LAUNCH: 2e-6, "cache": 1e-11, "memory": 4e-13, "turn": 6e-7, "warp": 3e-12, "function": 5e-12,
    "product 64x64": 4e-13, "product 128x128": 2e-13, "product 128x256": 1e-13,
}  # fmt: skip


class FakeWorker:
    """Compiles to nothing and measures what RATES say, with the launch before it."""

    def __init__(
        self, device: Device, why: str | None = None,
        shared: Callable[[Trial], int] = lambda trial: 1024, failed: str | None = None,
    ) -> None:  # fmt: skip
        self.trials, self.why, self.shared, self.failed = trials(device), why, shared, failed
        self.builder = self

    def refused(self, deadline: float = 0.0) -> str | None:
        return self.why

    def begin(self, chain, schedule, name, settings) -> FakeBuilding:
        trial = next(t for t in self.trials if (t.chain, t.schedule) == (chain, schedule))
        return FakeBuilding(trial, self)

    def measure(self, chain, programs, seed) -> list[Measured]:
        trial = next(t for t in self.trials if t.name == programs[0][0].source)
        seconds = RATES[LAUNCH]
        if trial.name != LAUNCH:
            seconds += RATES[trial.name] * trial.work / trial.units
        return [Measured(seconds, 0.0, conditions={"sm_mhz": 1000})]


@dataclass(frozen=True)
class FakeBuilding:
    trial: Trial
    worker: FakeWorker

    def kernel(self) -> Kernel:
        if self.trial.name == self.worker.failed:
            raise Illegal("ptxas crashed")
        shared = self.worker.shared(self.trial)
        return Kernel(self.trial.chain, self.trial.name, {}, b"", {"shared": shared})


def test_readings_are_times_over_work_without_the_launch() -> None:
    found = probe(H200, FakeWorker(H200))  # type: ignore[arg-type]
    assert dict(found.readings) == pytest.approx(RATES)
    assert found.conditions == {"sm_mhz": 1000}


def test_a_tile_that_does_not_fit_has_no_reading() -> None:
    worker = FakeWorker(L4, shared=lambda t: 144 << 10 if t.name == "product 128x256" else 1024)
    found = probe(L4, worker)  # type: ignore[arg-type]
    assert set(RATES) - set(found.readings) == {"product 128x256"}


def test_no_gpu_and_no_compiler_are_told_in_one_sentence() -> None:
    with pytest.raises(DeviceError, match="nvidia/l4 cannot be probed: no NVIDIA GPU is at hand"):
        probe(L4, FakeWorker(L4, why="no NVIDIA GPU is at hand"))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="kernel 'turn' does not compile: ptxas crashed"):
        probe(L4, FakeWorker(L4, failed="turn"))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=CATALOGUE)
def test_every_device_has_its_trials(device: Device) -> None:
    found = {t.name: t for t in trials(device)}
    assert set(found) == set(RATES)
    sizes = {n: found[n].work / 2 for n in ("cache", "memory")}
    assert 2 * sizes["cache"] <= max(device.cache, 1 << 22) < sizes["memory"]
    for trial in found.values():
        source = generate(trial.schedule, "probe", trial.lowering)
        extents = {a.name: trial.chain.size(a.name) for a in trial.chain.axes}
        (launch,) = source.launches
        blocks = launch.blocks(extents)[0]
        assert blocks == 1 if trial.name in (LAUNCH, "turn") else blocks > device.units / 2


def probed(device: Device, readings: dict[str, float]) -> Device:
    return replace(device, readings=tuple(readings.items()))


def test_constants_scale_by_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    known = probed(H200, RATES)
    monkeypatch.setattr("mcfuser.model.fitted.CATALOGUE", {H200.name: known})
    assert costs(known) == dict(H200.costs)
    slower = costs(probed(L4, RATES | {"turn": 3 * RATES["turn"], "warp": 2 * RATES["warp"]}))
    for name, value in H200.costs:
        times = {"turn": 3.0, "warp": 2.0, "memory": L4.bandwidth / H200.bandwidth}
        assert slower[name] == pytest.approx(value * times.get(GROUP[name], 1.0))


def test_every_term_has_a_group_that_is_read() -> None:
    assert {*NAMES, "memory"} == set(GROUP) and set(GROUP.values()) <= set(RATES)


def test_an_h200_reads_as_the_catalogue_says() -> None:
    with Worker(CUDA, H200) as worker:
        if (why := worker.refused()) is not None:
            pytest.skip(why)
        found = probe(H200, worker)
    assert set(found.readings) == set(dict(H200.readings))
    for name, value in H200.readings:
        assert found.readings[name] == pytest.approx(value, rel=0.25), name
