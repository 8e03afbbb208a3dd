"""What is found of GPUs and their toolchain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcfuser.backends.cuda import examine
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.versions import ABSENT
from tests.support.doctor_dies import HOW

H200 = {"name": "NVIDIA H200", "arch": "sm_90", "device": "nvidia/h200"}
OTHER = {"name": "NVIDIA Thing", "arch": "sm_50", "device": None}


def told(*gpus: dict[str, Any], unusable: str | None = None) -> dict[str, Any]:
    return {"driver": "580.65", "cuda": "13.0", "gpus": list(gpus), "unusable": unusable}


def test_a_gpu_of_the_catalogue_is_measured_on() -> None:
    found = examine.surveyed(told(H200, H200, OTHER))
    assert found.level == "ok" and found.facts["devices"] == ["nvidia/h200"]
    assert found.sentence == ("NVIDIA H200 (sm_90), NVIDIA Thing (sm_50); driver 580.65, CUDA 13.0")


def test_one_that_the_catalogue_lacks_is_not() -> None:
    found = examine.surveyed(told(OTHER))
    assert found.level == "warning" and found.facts["devices"] == []
    assert "the catalogue has none of them" in found.sentence and found.remedy


def test_a_driver_that_does_not_start_is_a_warning() -> None:
    found = examine.surveyed(told(unusable="the NVIDIA driver offers CUDA 11.4, and .."))
    assert found.level == "warning" and "CUDA 11.4" in found.sentence and found.remedy
    assert "knows of none" in examine.surveyed(told()).sentence


def missing(monkeypatch: pytest.MonkeyPatch, why: str | None) -> None:
    monkeypatch.setattr(type(CUDA), "missing", lambda self: why)


def test_a_machine_without_a_gpu_needs_no_mending(monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "no NVIDIA GPU is at hand: its driver is not installed")
    (found,) = examine.gpus()
    assert (found.level, found.remedy, found.facts) == ("ok", "", {"devices": []})
    missing(monkeypatch, "measuring needs cuda-core; install mcfuser with its gpu extra")
    (found,) = examine.gpus()
    assert (found.level, found.remedy) == ("warning", "install mcfuser with its gpu extra")


def test_a_driver_that_kills_the_survey_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, None)
    monkeypatch.setenv(HOW, "crash")
    (found,) = examine.gpus("tests.support.doctor_dies")
    assert found.level == "warning" and "SIGSEGV" in found.sentence and "nvidia-smi" in found.remedy


def test_the_toolchain_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = examine.toolchain()
    assert found.level in ("ok", "warning") and "ptxas" in found.sentence

    def none() -> list[Path]:
        raise ModuleNotFoundError("No module named 'nvidia'", name="nvidia")

    monkeypatch.setattr(examine, "places", none)
    (found,) = examine.toolchain()
    assert found.level == "warning" and found.remedy == examine.EXTRA
    monkeypatch.setattr(examine, "places", list)
    (found,) = examine.toolchain()
    assert found.level == "warning" and "cuda_runtime.h" in found.sentence
    assert found.remedy == examine.EXTRA
    versions = (("triton", ABSENT), ("ptxas", ABSENT))
    monkeypatch.setattr(type(CUDA), "toolchain", lambda self: versions)
    (found,) = examine.toolchain()
    assert found.level == "warning" and "triton is missing" in found.sentence
