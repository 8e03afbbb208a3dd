"""The CPU at hand, measured."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from mcfuser.devices import cpu
from mcfuser.devices.catalogue import device_named
from mcfuser.devices.cpu import _at_once, probe_cpu, unmeasured_cpu


def test_the_cpu_at_hand_is_probed_once() -> None:
    found = device_named("cpu")
    assert found is probe_cpu()
    assert (found.name, found.kind) == ("cpu", "cpu")
    assert found.arch
    assert found.units >= 1
    assert found.bits in (128, 256, 512)
    assert 1e8 < found.throughput("float32") < 1e14
    assert 1e8 < found.bandwidth < 1e13
    assert 64 << 10 <= found.fast <= 1 << 30


def test_what_kernels_depend_on_is_told_without_measuring_and_without_importing_tvm() -> None:
    assert unmeasured_cpu().key == probe_cpu().key and unmeasured_cpu().bandwidth == 0.0
    told = subprocess.run(
        [sys.executable, "-c", UNMEASURED], capture_output=True, text=True, check=True
    )
    key, before, after = told.stdout.splitlines()
    assert key == probe_cpu().key and before == "[]"
    assert after == probe_cpu().arch, "TVM is imported where its libraries are loaded already"


@pytest.mark.parametrize(
    ("flags", "bits", "vnni"),
    [
        ("sse2 avx2", 256, False),
        ("sse2 avx2 avx_vnni", 256, True),
        ("avx2 avx512bw", 512, False),
        ("avx2 avx512bw avx_vnni", 512, False),
        ("avx2 avx512bw avx512_vnni", 512, True),
        ("avx2 avx512_vnni_more", 256, False),
    ],
)
def test_bytes_are_multiplied_by_vectors_of_the_width_at_hand(
    flags: str, bits: int, vnni: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "processor_flags", lambda: set(flags.split()))
    found = cpu.unmeasured_cpu()
    assert (found.bits, found.vnni) == (bits, vnni)


def test_rates_are_those_of_all_cores_together() -> None:
    here = threading.Barrier(4)
    assert _at_once(4, lambda i: here.wait(60)) < 60  # ends only where four wait at once


def test_threads_of_numpy_are_no_part_of_the_rates() -> None:
    """A process whose NumPy has one thread sees the same machine, unless others are busy there."""

    def rate(threads: int) -> float:
        told = subprocess.run(
            [sys.executable, "-c", ASKED], capture_output=True, text=True, check=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": str(threads)},
        )  # fmt: skip
        return float(told.stdout)

    cores, seen = os.cpu_count() or 1, []
    for _ in range(3):
        one, every = rate(1), rate(cores)
        seen.append(one / every)
        if 1 / 3 < seen[-1] < 3:
            return
    raise AssertionError(f"with one thread, it is {seen} times as fast")


ASKED = """
import os
from mcfuser.devices.cpu import _product_rate
print(_product_rate(os.cpu_count()))
"""

UNMEASURED = """
import sys
from mcfuser.devices.cpu import unmeasured_cpu
print(unmeasured_cpu().key)
print([name for name in sys.modules if name.split(".")[0] == "tvm"])
import tvm.relax
from tvm.target import codegen
print(codegen.llvm_get_system_cpu())
"""
