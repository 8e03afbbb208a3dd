"""Looks for NVIDIA GPUs, in a process that may die of the driver (mcfuser.process.confined)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuda.bindings import nvml
from cuda.core import Device as Handle

from mcfuser.backends.cuda import driver
from mcfuser.devices.catalogue import CATALOGUE


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """The driver's version (None where nobody tells) and the newest CUDA that it offers, and the
    GPUs: name, architecture, and name in the catalogue, None where it has no such device.

    `unusable` says why there are none, None where nothing is wrong.
    """
    found: list[dict[str, Any]] = []
    version = None
    try:
        cuda = driver.offered()
        handles = list(Handle.get_all_devices())
    except Exception as error:  # cuda-core raises what its loader happens to raise
        return {"driver": None, "cuda": None, "gpus": [], "unusable": driver.first_line(error)}
    for handle in handles:
        arch = f"sm_{handle.arch}"
        known = (d.name for d in CATALOGUE.values() if driver.is_device(handle.name, arch, d))
        found.append({"name": str(handle.name), "arch": arch, "device": next(known, None)})
    try:
        nvml.init_v2()
        version = str(nvml.system_get_driver_version())
    except (nvml.NvmlError, RuntimeError):  # its library may be missing
        version = None
    return {"driver": version, "cuda": cuda, "gpus": found, "unusable": None}
