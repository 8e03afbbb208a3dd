"""The CPU at hand, measured."""

from __future__ import annotations

from mcfuser.devices.catalogue import device_named
from mcfuser.devices.cpu import probe_cpu


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
