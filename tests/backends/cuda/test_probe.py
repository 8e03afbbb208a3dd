"""The probe: what it times, what it makes of the times, and what the model makes of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mcfuser.backends.cuda.probe import LAUNCH, Trial, probe, trials
from mcfuser.backends.cuda.worker import GpuWorker
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import DeviceError
from mcfuser.measure.worker import Measured
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
        self.compilers = self

    def refused(self, deadline: float = 0.0) -> str | None:
        return self.why

    def compile(self, sources, arch) -> Iterator[tuple[int, Binary | Illegal]]:
        for i in reversed(range(len(sources))):
            trial = self.trials[i]
            if trial.name == self.failed:
                yield i, Illegal("ptxas crashed")
            else:
                yield i, Binary(b"", "probe", self.shared(trial), 32, 0, sources[i].warps * 32)

    def measure(self, chain, programs, seed) -> list[Measured]:
        found = programs[0][0].source.text
        trial = next(t for t in self.trials if t.source().text == found)
        seconds = RATES[LAUNCH]
        if trial.name != LAUNCH:
            seconds += RATES[trial.name] * trial.work / trial.units
        return [Measured(seconds, 0.0, conditions={"sm_mhz": 1000})]


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
        source = trial.source()
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
    with GpuWorker(H200) as worker:
        if (why := worker.refused()) is not None:
            pytest.skip(why)
        found = probe(H200, worker)
    assert set(found.readings) == set(dict(H200.readings))
    for name, value in H200.readings:
        assert found.readings[name] == pytest.approx(value, rel=0.25), name
