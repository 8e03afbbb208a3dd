"""The CPU at hand: its vector width and caches as the system tells, its rates as NumPy reaches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from mcfuser.device import Device


@lru_cache(maxsize=1)
def probe_cpu() -> Device:
    """This machine's CPU, measured once in a process: it takes about a tenth of a second."""
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
    """Flops per second of a square float32 product through NumPy, the best of 20."""
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


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
