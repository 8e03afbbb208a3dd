"""Which back end a device has, and what every back end says of itself."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.backends.cpu.backend import CPU
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.knobs import KnobTable, declared
from tests.support.paths import ROOT

H200 = CATALOGUE["nvidia/h200"]
HOST = Device("cpu", "cpu", "znver3", 2, (("float32", 1e11),), 1e10, 1 << 19, 256)


def test_the_kind_of_a_device_chooses_its_back_end() -> None:
    assert backend_of(H200) is CUDA and CUDA.kind == H200.kind
    assert backend_of(HOST) is CPU and CPU.kind == HOST.kind


@pytest.mark.parametrize("backend", [CPU, CUDA], ids=["cpu", "cuda"])
def test_what_a_back_end_names_is_there(backend: Backend) -> None:
    assert all((ROOT / "mcfuser" / source).exists() for source in backend.sources)
    assert declared(backend.knobs)
    assert all(name and version for name, version in backend.toolchain())
    if backend is CUDA:
        pytest.importorskip("cuda.core")
    assert callable(importlib.import_module(backend.runner).open_device)


@pytest.mark.parametrize(("bits", "lanes"), [(512, 16), (256, 8), (128, 4)])
def test_a_cpu_s_micro_tiles_fill_its_registers_without_spilling(bits: int, lanes: int) -> None:
    settings = KnobTable(CPU.knobs, replace(HOST, bits=bits)).settings
    registers = 32 if bits == 512 else 16
    assert settings and {s.lanes for s in settings} == {lanes}
    assert all(12 <= s.rows * s.vectors <= 24 < registers or s.rows * s.vectors == 12
               for s in settings)  # fmt: skip
    wide, narrow = {(8, 2), (6, 4), (8, 3)}, {(6, 2), (4, 3)}
    assert {(s.rows, s.vectors) for s in settings} == (wide if bits == 512 else narrow)


def test_warp_groups_have_four_warps_a_pipeline_and_maps() -> None:
    with_groups = [s for s in KnobTable(CUDA.knobs, H200).settings if s.groups]
    assert {(s.warps, s.combine, s.tma) for s in with_groups} == {(4, "kernel", True)}
    assert {s.stages for s in with_groups} == {2, 3, 4}
    assert {s.dot for s in with_groups} == {"ieee"}
    assert len(KnobTable(CUDA.knobs, H200)) == 4 * 64 + 3


def test_pictures_have_their_channels_last_on_a_cpu_without_a_matrix_unit() -> None:
    assert CPU.channels_last(HOST) == "always"
    assert CPU.channels_last(replace(HOST, matrix="amx")) == "never"
    assert CUDA.channels_last(H200) == "dense"
