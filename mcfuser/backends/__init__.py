"""The kinds of device that kernels are made for; this is where one is chosen."""

from __future__ import annotations

from mcfuser.backend import Backend
from mcfuser.device import Device


def backend_of(device: Device) -> Backend:
    """The back end for a device."""
    if device.kind == "cpu":
        from mcfuser.backends.cpu.backend import CPU

        return CPU
    from mcfuser.backends.cuda.backend import CUDA

    return CUDA
