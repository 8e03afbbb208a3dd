"""The CPU at hand: its vector width and caches as the system tells, its rates as NumPy reaches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from mcfuser.device import Device
from mcfuser.devices.amx import matrix_rate, matrix_unit, processor_flags

VNNI = {512: "avx512_vnni", 256: "avx_vnni"}
"""The system's name of instructions that multiply bytes, by the bits of a vector register."""


@lru_cache(maxsize=1)
def probe_cpu() -> Device:
    """This machine's CPU, measured once in a process: it takes some tenths of a second."""
    cpu = unmeasured_cpu()
    peak = {"float32": _product_rate(cpu.units)}
    if cpu.matrix:
        peak["matrix"] = matrix_rate(cpu.units, _at_once)
    return replace(cpu, peak=tuple(peak.items()), bandwidth=_copy_rate(cpu.units))


def unmeasured_cpu() -> Device:
    """This machine's CPU without its rates, on which no `Device.key` depends."""
    arch, cores = _architecture(), len(_usable()) or os.cpu_count() or 1
    flags = processor_flags()
    bits = _vector_bits(flags)
    return Device(
        "cpu", "cpu", arch, cores, (), 0.0, _private_cache(), bits, matrix=matrix_unit(),
        vnni=VNNI.get(bits, "") in flags,
    )  # fmt: skip


def _usable() -> list[int]:
    """The cores that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _architecture() -> str:
    """LLVM's name of the processor. TVM's libraries alone are loaded, as its package does:
    importing that takes half a second more."""
    from tvm_ffi import get_global_func
    from tvm_ffi.libinfo import load_lib_ctypes

    package = find_spec("tvm")
    assert package is not None and package.origin is not None
    places = [Path(package.origin).parent / "lib"]
    load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", places)
    load_lib_ctypes("tvm", "tvm_compiler", "RTLD_LOCAL", places)
    return str(get_global_func("target.llvm_get_system_cpu")())


def _vector_bits(flags: AbstractSet[str]) -> int:
    return 512 if "avx512bw" in flags else 256 if "avx2" in flags else 128


def _private_cache() -> int:
    size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    words = size.read_text().strip() if size.exists() else "512K"
    unit = {"K": 1 << 10, "M": 1 << 20}.get(words[-1], 1)
    return int(words.rstrip("KM")) * unit


def _product_rate(cores: int) -> float:
    """Flops per second of square float32 products through NumPy: of one on each core, or of one
    alone where that is faster, for NumPy may use one thread for a product or all of them."""
    import numpy as np

    n = 768
    a = np.ones((n, n), np.float32)
    results = np.empty((cores, n, n), np.float32)
    alone = min(_seconds(lambda: np.matmul(a, a, results[0])) for _ in range(8))
    together = _at_once(cores, lambda i: np.matmul(a, a, results[i]))
    return 2 * n**3 / min(alone, together / cores)


def _copy_rate(cores: int) -> float:
    """Bytes read and written per second by a copy of 64 MiB, of which each core does a part."""
    import numpy as np

    source, target = np.zeros((2, 1 << 24), np.float32)
    target.fill(0)
    parts = list(zip(np.array_split(target, cores), np.array_split(source, cores), strict=True))
    return 2 * source.nbytes / _at_once(cores, lambda i: np.copyto(*parts[i]))


def _at_once(count: int, work: Callable[[int], object]) -> float:
    """Seconds in which that many threads do `work`, each with its number; the best of five. Each
    keeps to one core where the system allows that: for the few milliseconds that the work takes,
    two threads would stay where they were woken, which may be the same core."""
    cores = _usable()

    def here(i: int) -> object:
        if cores:
            os.sched_setaffinity(0, {cores[i % len(cores)]})  # this thread's alone
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return min(_seconds(lambda: list(pool.map(here, range(count)))) for _ in range(5))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
