"""The catalogue: its figures, its names, and the form of its files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, device_named, names, read_device
from mcfuser.errors import DeviceError, InputError
from tests.support.paths import GOLDEN

A100 = CATALOGUE["nvidia/a100"]


def test_the_catalogue_has_the_devices_that_are_promised() -> None:
    assert names() == (
        "cpu", "nvidia/a100", "nvidia/rtx3080", "nvidia/l4", "nvidia/h100", "nvidia/h200"
    )  # fmt: skip
    assert {name: d.name for name, d in CATALOGUE.items()} == {n: n for n in CATALOGUE}


@pytest.mark.parametrize("name", CATALOGUE)
def test_figures_are_those_that_kernels_were_tuned_with(name: str) -> None:
    """To the last digit: a key that changes loses every kernel that is kept."""
    d, kept = CATALOGUE[name], json.loads((GOLDEN / "devices.json").read_text())[name]
    assert d.key == kept.pop("key")
    assert json.loads(json.dumps(asdict(d))) == kept


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
    assert d.threads % 32 == 0 and 1024 <= d.threads <= 2048 and 16 <= d.blocks <= 32


def test_the_papers_gpu() -> None:
    assert (A100.arch, A100.units, A100.fast) == ("sm_80", 108, 163 * 1024)
    assert A100.throughput("float16") == 312e12


def test_the_h200_is_an_h100_with_more_bandwidth() -> None:
    h100, h200 = CATALOGUE["nvidia/h100"], CATALOGUE["nvidia/h200"]
    measured = {"costs": h200.costs, "cache": h200.cache, "readings": h200.readings}
    assert replace(h100, name=h200.name, bandwidth=h200.bandwidth, **measured) == h200
    assert h200.bandwidth > h100.bandwidth


@pytest.mark.parametrize("name", [*CATALOGUE, "h200"])
def test_the_vendor_may_be_left_out(name: str) -> None:
    assert device_named(name) == device_named(name.removeprefix("nvidia/"))


@pytest.mark.parametrize("name", ["", "gpu", "nvidia/b300", "amd/h200", "CPU", "nvidia/"])
def test_an_unknown_device_lists_those_known(name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        device_named(name)
    assert str(caught.value) == f"device '{name}' is not known; use one of {', '.join(names())}"
    assert isinstance(caught.value, InputError)


WRITTEN = """
kind = "cuda"
arch = "sm_120"
units = 84
bandwidth = 1
fast = 101_376
[peak]
float32 = 56e12
"""


def test_a_device_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "acme" / "x1.toml"
    path.parent.mkdir()
    path.write_text(WRITTEN)
    assert read_device(path) == Device(
        "acme/x1", "cuda", "sm_120", 84, (("float32", 56e12),), 1.0, 99 * 1024
    )
    assert isinstance(read_device(path).bandwidth, float)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (WRITTEN.replace("units = 84", ""), "units"),
        (WRITTEN.replace("units", "cores"), "cores"),
        (WRITTEN.replace("84", "'many'"), "many"),
        ("peak = 1", "items"),
        ("kind: cuda", "line 1"),
    ],
)
def test_a_file_of_another_form_is_told(written: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x1.toml"
    path.write_text(written)
    with pytest.raises(DeviceError) as caught:
        read_device(path)
    assert str(path) in str(caught.value) and told in str(caught.value)


def test_the_catalogue_needs_no_compiler() -> None:
    code = (
        "import sys, mcfuser.devices.catalogue as c; c.device_named('h200'); "
        "print(*sorted({'tvm', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
