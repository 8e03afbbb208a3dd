"""The search for GPUs: the driver and its GPUs are pretended, for no test machine has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("cuda.core")

from cuda.bindings import nvml

from mcfuser.backends.cuda import driver, survey
from mcfuser.backends.cuda.examine import surveyed
from mcfuser.measure.runner import Unusable


@dataclass
class PretendedGpu:
    name: str
    arch: str


def looked_up(monkeypatch: pytest.MonkeyPatch, *gpus: PretendedGpu) -> dict[str, Any]:
    class Handles:
        @staticmethod
        def get_all_devices() -> tuple[PretendedGpu, ...]:
            return gpus

    monkeypatch.setattr(driver, "offered", lambda: "13.0")
    monkeypatch.setattr(survey, "Handle", Handles)
    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "system_get_driver_version", lambda: "580.65.06")
    return survey.answer({}, lambda message: None)


def test_gpus_are_named_as_the_catalogue_does(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = PretendedGpu("NVIDIA H200", "90"), PretendedGpu("NVIDIA Thing", "50")
    told = looked_up(monkeypatch, *gpus)
    assert told == {
        "driver": "580.65.06", "cuda": "13.0", "unusable": None,
        "gpus": [
            {"name": "NVIDIA H200", "arch": "sm_90", "device": "nvidia/h200"},
            {"name": "NVIDIA Thing", "arch": "sm_50", "device": None},
        ],
    }  # fmt: skip
    assert surveyed(told).facts["devices"] == ["nvidia/h200"]


def test_a_driver_without_its_library_of_facts_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up(monkeypatch)

    def missing() -> None:
        raise RuntimeError("libnvidia-ml.so.1 is not there")

    monkeypatch.setattr(nvml, "init_v2", missing)
    assert survey.answer({}, lambda message: None)["driver"] is None


@pytest.mark.parametrize(
    "error", [Unusable("the NVIDIA driver offers CUDA 11.4"), RuntimeError("no libcuda\nat all")]
)
def test_a_driver_that_does_not_start_is_told(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> str:
        raise error

    monkeypatch.setattr(driver, "offered", refused)
    told = survey.answer({}, lambda message: None)
    assert told["gpus"] == [] and told["unusable"] == str(error).splitlines()[0]
