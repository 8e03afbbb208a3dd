"""Devices: what they can do and what they hold; a catalogue, and a probe of the CPU at hand."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mcfuser.errors import DeviceError

Constants = tuple[tuple[str, float], ...]
"""Names and what was measured for them."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks and limits. Rates are per second, sizes in bytes.

    `units` counts multiprocessors or cores; `fast` is the memory that one block may use (the
    paper's Shm_max: shared memory, or a core's private cache); `bits` is the width of a CPU's
    vector register, 0 on a GPU. `costs` are the fitted model's constants (model.fitted), and
    `readings` what a probe has found (probe_gpu); `cache` is the last level before memory.
    """

    name: str
    kind: str
    arch: str
    units: int
    peak: tuple[tuple[str, float], ...]
    bandwidth: float
    fast: int
    bits: int = 0
    costs: Constants = ()
    cache: int = 0
    readings: Constants = ()

    def throughput(self, dtype: str) -> float:
        """Peak flops per second of products of that storage type, summed over the device."""
        rates = dict(self.peak)
        return rates.get(dtype, rates["float32"])

    @property
    def key(self) -> str:
        """What a tuned kernel depends on; measured peaks are not part of it."""
        return f"{self.name}/{self.arch}/{self.units}/{self.fast}/{self.bits}"


def _nvidia(
    name: str, arch: str, units: int, half: float, single: float, bandwidth: float, shared: int,
    cache: int, costs: Constants = (), readings: Constants = (),
) -> Device:  # fmt: skip
    peak = (("float16", half), ("bfloat16", half), ("float32", single))
    limit = shared * 1024
    return Device(
        f"nvidia/{name}",
        "cuda",
        arch,
        units,
        peak,
        bandwidth,
        limit,
        0,
        costs,
        cache << 20,
        readings,
    )


# Seconds an event by term (model.terms), from `mcfuser bench model` over benchmarks/data/h200.
H200 = (
    ("launch", 7.57e-07), ("combined", 9.07e-12), ("parts", 2.8e-08), ("second", 9.1e-07),
    ("ended", 9.15e-07), ("warps", 7.52e-08), ("distinct", 5.51e-12), ("maps", 7.81e-07),
    ("turn", 1.72e-07), ("arrive", 6.67e-12), ("fill", 6.3e-08), ("load", 9.69e-08),
    ("issue", 1e-08), ("copy", 8.36e-10), ("fetch", 5.7e-08), ("mma", 2.78e-09), ("chain", 8.5e-09),
    ("group", 7.46e-09), ("teams", 5.76e-08), ("across", 1.84e-07), ("reduce", 2.4e-09),
    ("mask", 1.29e-09), ("spill", 2.25e-09), ("gather", 1.99e-08), ("regather", 3.41e-08),
    ("far_load", 3.02e-07), ("far_fill", 4.96e-07), ("lines", 2.56e-12), ("box", 3.84e-13),
    ("exposed", 6.06e-12), ("stored", 5.8e-11), ("cast", 2.83e-11), ("group_all", 4.54e-11),
    ("operands", 1.31e-09), ("simple_all", 2.77e-12), ("spread", 2.99e-11),
    ("paced_block", 4.04e-06), ("paced_product", 1.92e-11), ("paced_operation", 4.78e-12),
    ("paced_turn", 1.86e-07), ("memory", 1.37),
)  # fmt: skip


# What the probe has found on it, seconds (probe_gpu.probe), the mean of two.
READINGS = (
    ("launch", 7.91e-07), ("cache", 1.92e-11), ("memory", 2.54e-13), ("turn", 1.98e-07),
    ("warp", 6.47e-13), ("function", 3.45e-11), ("product 64x64", 3.28e-13),
    ("product 128x128", 2.08e-13), ("product 128x256", 2.06e-13),
)  # fmt: skip

# Dense tensor-core rates with float32 accumulation, float32 through the ordinary units;
# the vendor's published figures. Shared memory is what one block may ask for.
CATALOGUE: Mapping[str, Device] = {
    d.name: d
    for d in (
        _nvidia("a100", "sm_80", 108, 312e12, 19.5e12, 1.555e12, 163, 40),
        _nvidia("rtx3080", "sm_86", 68, 59.5e12, 29.8e12, 0.76e12, 99, 5),
        _nvidia("l4", "sm_89", 58, 121e12, 30.3e12, 0.30e12, 99, 48),
        _nvidia("h100", "sm_90", 132, 989e12, 67e12, 3.35e12, 227, 50),
        _nvidia("h200", "sm_90", 132, 989e12, 67e12, 4.8e12, 227, 60, H200, READINGS),
    )
}


def names() -> tuple[str, ...]:
    return ("cpu", *CATALOGUE)


def device_named(name: str) -> Device:
    """The device of that name: `cpu` is the one at hand, probed; the rest are in the catalogue.

    Raises DeviceError listing the names that are known.
    """
    if name == "cpu":
        return probe_cpu()
    full = name if name.startswith("nvidia/") else f"nvidia/{name}"
    if full not in CATALOGUE:
        raise DeviceError(f"device '{name}' is not known; use one of {', '.join(names())}")
    return CATALOGUE[full]


@lru_cache(maxsize=1)
def probe_cpu() -> Device:
    """This machine's CPU: vector width and caches as the system tells, rates as numpy reaches."""
    from tvm.target import codegen

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Device(
        "cpu", "cpu", str(codegen.llvm_get_system_cpu()), cores or 1,
        (("float32", _product_rate()),), _copy_rate(), _private_cache(), _vector_bits(),
    )  # fmt: skip


def _vector_bits() -> int:
    info = Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    return 512 if "avx512f" in flags else 256 if "avx2" in flags else 128


def _private_cache() -> int:
    size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    words = size.read_text().strip() if size.exists() else "512K"
    unit = {"K": 1 << 10, "M": 1 << 20}.get(words[-1], 1)
    return int(words.rstrip("KM")) * unit


def _product_rate() -> float:
    """Flops per second of a square float32 product through numpy, the best of many."""
    import numpy as np

    n = 768
    a = np.ones((n, n), np.float32)
    return 2 * n**3 / min(_seconds(lambda: a @ a) for _ in range(20))


def _copy_rate() -> float:
    """Bytes read and written per second by a copy larger than any cache, the best of three."""
    import numpy as np

    source = np.zeros(1 << 24, np.float32)
    target = np.empty_like(source)
    target.fill(0)
    return 2 * source.nbytes / min(_seconds(lambda: np.copyto(target, source)) for _ in range(3))


def _seconds(work: object) -> float:
    start = time.perf_counter()
    assert callable(work)
    work()
    return time.perf_counter() - start
