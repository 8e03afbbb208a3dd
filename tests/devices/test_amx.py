"""Intel's AMX on the CPU at hand, if it has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.devices.amx import AMX, matrix_rate, matrix_unit
from mcfuser.devices.cpu import _at_once, probe_cpu

INFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not INFO.exists(), reason="only Linux tells of the CPU there")
def test_a_cpu_without_amx_has_no_unit() -> None:
    told = {"amx_tile", "amx_bf16"} <= set(INFO.read_text().split())
    assert matrix_unit() in ((AMX, "") if told else ("",))


def test_the_probed_cpu_has_the_unit_and_its_rate_or_neither() -> None:
    cpu = probe_cpu()
    assert cpu.matrix == matrix_unit()
    assert ("matrix" in dict(cpu.peak)) == bool(cpu.matrix)
    assert cpu.key != replace(cpu, matrix="another").key


@pytest.mark.skipif(not matrix_unit(), reason="this CPU has no AMX that may be used")
def test_the_unit_multiplies_faster_than_vectors() -> None:
    assert matrix_rate(1, _at_once) > 2e11  # a core's vectors: 1.6e11 at most
