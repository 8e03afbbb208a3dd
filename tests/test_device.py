"""Devices: the catalogue, names, keys, and the CPU at hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from mcfuser.device import CATALOGUE, device_named, names, probe_cpu
from mcfuser.errors import DeviceError, InputError

A100 = CATALOGUE["nvidia/a100"]


def test_the_catalogue_has_the_devices_that_are_promised() -> None:
    assert names() == (
        "cpu", "nvidia/a100", "nvidia/rtx3080", "nvidia/l4", "nvidia/h100", "nvidia/h200"
    )  # fmt: skip
    assert {name: d.name for name, d in CATALOGUE.items()} == {n: n for n in CATALOGUE}


@pytest.mark.parametrize("name", CATALOGUE)
def test_figures_are_in_units_per_second_and_bytes(name: str) -> None:
    d = CATALOGUE[name]
    assert d.kind == "cuda"
    assert d.arch.startswith("sm_")
    assert 1e13 < d.throughput("float32") < d.throughput("float16") < 1e15
    assert d.throughput("float16") == d.throughput("bfloat16")
    assert 1e11 < d.bandwidth < 1e13
    assert 64 << 10 <= d.fast <= 228 << 10
    assert 50 <= d.units <= 150
    assert d.bits == 0


def test_the_papers_gpu() -> None:
    assert (A100.arch, A100.units, A100.fast) == ("sm_80", 108, 163 * 1024)
    assert A100.throughput("float16") == 312e12


def test_the_h200_is_an_h100_with_more_bandwidth() -> None:
    h100, h200 = CATALOGUE["nvidia/h100"], CATALOGUE["nvidia/h200"]
    measured = {"costs": h200.costs, "cache": h200.cache, "readings": h200.readings}
    assert replace(h100, name=h200.name, bandwidth=h200.bandwidth, **measured) == h200
    assert h200.bandwidth > h100.bandwidth


def test_an_unlisted_type_runs_at_the_rate_of_float32() -> None:
    assert A100.throughput("int32") == A100.throughput("float32")


@pytest.mark.parametrize("name", [*CATALOGUE, "h200"])
def test_the_vendor_may_be_left_out(name: str) -> None:
    assert device_named(name) == device_named(name.removeprefix("nvidia/"))


@pytest.mark.parametrize("name", ["", "gpu", "nvidia/b300", "amd/h200", "CPU", "nvidia/"])
def test_an_unknown_device_lists_those_known(name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        device_named(name)
    assert str(caught.value) == f"device '{name}' is not known; use one of {', '.join(names())}"
    assert isinstance(caught.value, InputError)


def test_the_key_changes_with_what_a_kernel_depends_on_and_not_with_measured_rates() -> None:
    assert replace(A100, bandwidth=1.0, peak=(("float32", 1.0),)).key == A100.key
    for change in ({"name": "x"}, {"arch": "sm_90"}, {"units": 1}, {"fast": 1}, {"bits": 512}):
        assert replace(A100, **change).key != A100.key  # type: ignore[arg-type]
    assert len({d.key for d in CATALOGUE.values()}) == len(CATALOGUE)


def test_devices_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        A100.units = 1  # type: ignore[misc]
    assert hash(A100) == hash(replace(A100))


def test_the_cpu_at_hand_is_probed_once() -> None:
    cpu = device_named("cpu")
    assert cpu is probe_cpu()
    assert (cpu.name, cpu.kind) == ("cpu", "cpu")
    assert cpu.arch
    assert cpu.units >= 1
    assert cpu.bits in (128, 256, 512)
    assert 1e8 < cpu.throughput("float32") < 1e14
    assert 1e8 < cpu.bandwidth < 1e13
    assert 64 << 10 <= cpu.fast <= 1 << 30


def test_the_catalogue_needs_no_compiler() -> None:
    code = "import sys, mcfuser.device as d; d.device_named('h200'); print('tvm' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
