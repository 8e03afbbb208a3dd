"""An NVIDIA GPU through cuda-core: memory, and kernels from cubins.

Only processes that measure import this; it needs the optional dependencies `mcfuser[gpu]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device as Handle
from cuda.core import LaunchConfig, ObjectCode, launch
from numpy.typing import NDArray

from mcfuser.device import Device

OLDEST = 12000
"""The oldest driver that cuda-core works with: CUDA 12.0, as the driver writes it."""
LARGE = 48 << 10
"""Shared memory above this must be asked for, bytes a block."""


class Unusable(Exception):
    """There is no GPU to measure on, in one sentence."""


@dataclass
class Gpu:
    """The GPU at hand, current in this process; `used` is when it last worked (monotonic)."""

    handle: Any
    stream: Any
    versions: dict[str, str]
    used: float = 0.0

    @property
    def name(self) -> str:
        return str(self.handle.name)

    @property
    def uuid(self) -> str:
        return str(self.handle.uuid)


@dataclass(frozen=True)
class Launch:
    """A kernel with its launch parameters and arguments."""

    kernel: Any
    config: Any
    arguments: tuple[Any, ...]

    def on(self, stream: Any) -> None:
        launch(stream, self.config, self.kernel, *self.arguments)


def find(device: Device) -> Gpu:
    """The first GPU of this machine that is the device asked for; raises Unusable."""
    try:
        number = _number(*driver.cuInit(0)) or _version()
        handles = Handle.get_all_devices()
    except Exception as error:  # cuda-core raises what its loader happens to raise
        raise Unusable(f"no NVIDIA GPU is at hand: {_first_line(error)}") from None
    if number < OLDEST:
        raise Unusable(
            f"the NVIDIA driver offers CUDA {_dotted(number)}, and measuring needs "
            f"{_dotted(OLDEST)}; update the driver"
        )
    if not handles:
        raise Unusable("no NVIDIA GPU is at hand")
    for handle in handles:
        if is_device(handle.name, f"sm_{handle.arch}", device):
            return _opened(handle, _dotted(number))
    found = ", ".join(sorted({f"{h.name} (sm_{h.arch})" for h in handles}))
    raise Unusable(f"the GPU at hand is {found}, not {device.name}")


def is_device(name: str, arch: str, device: Device) -> bool:
    """A GPU of this name is the device: `NVIDIA GeForce RTX 3080` is nvidia/rtx3080."""
    words = " ".join(re.split(r"[^a-z0-9]+", name.lower()))
    wanted = device.name.rpartition("/")[2]
    pattern = r"\s?".join(re.findall(r"[a-z]+|\d+", wanted))
    return arch == device.arch and re.search(rf"\b{pattern}\b", words) is not None


def _opened(handle: Any, version: str) -> Gpu:
    try:
        handle.set_current()
        return Gpu(handle, handle.create_stream(), {"cuda driver": version})
    except Exception as error:
        raise Unusable(f"{handle.name} cannot be used: {_first_line(error)}") from None


# --- memory ---------------------------------------------------------------------------------


def allocate(gpu: Gpu, size: int) -> Any:
    """Device memory of so many bytes; raises Unusable where the GPU has no more."""
    free, total = _numbers(*driver.cuMemGetInfo())
    if size > free:
        raise Unusable(
            f"{gpu.name} has {free >> 20} MiB of its {total >> 20} MiB left, and "
            f"{size >> 20} MiB are needed: another process fills it"
        )
    return gpu.handle.memory_resource.allocate(max(size, 16), stream=gpu.stream)


def upload(gpu: Gpu, array: NDArray[Any]) -> Any:
    """A copy of an array on the GPU."""
    array = np.ascontiguousarray(array)
    buffer = allocate(gpu, array.nbytes)
    gpu.stream.sync()
    _number(*driver.cuMemcpyHtoD(int(buffer.handle), array.ctypes.data, array.nbytes))
    return buffer


def download(gpu: Gpu, buffer: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Fills an array with what lies on the GPU."""
    gpu.stream.sync()
    _number(*driver.cuMemcpyDtoH(array.ctypes.data, int(buffer.handle), array.nbytes))
    return array


def poison(gpu: Gpu, buffer: Any) -> None:
    """All bits set: NaN in every float type, so an element that nobody writes is found."""
    buffer.fill(0xFF, stream=gpu.stream)


def clear(gpu: Gpu, buffer: Any) -> None:
    """Zeros."""
    buffer.fill(0, stream=gpu.stream)


# --- kernels --------------------------------------------------------------------------------


def load(cubin: bytes) -> Any:
    """A binary in the GPU's memory."""
    return ObjectCode.from_cubin(cubin)


def prepare(
    gpu: Gpu, binary: Any, name: str, grid: Sequence[int], threads: int, shared: int,
    arguments: Sequence[Any],
) -> Launch:  # fmt: skip
    """A kernel of Triton's ready to launch; its two last pointers, for scratch memory, are null."""
    kernel = binary.get_kernel(name)
    if shared > LARGE:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done = driver.cuKernelSetAttribute(
            attribute, shared, driver.CUkernel(int(kernel.handle)), gpu.handle.device_id
        )
        _number(*done)
    config = LaunchConfig(grid=tuple(grid), block=(threads, 1, 1), shmem_size=shared)
    return Launch(kernel, config, (*arguments, np.uint64(0), np.uint64(0)))


def run(gpu: Gpu, launches: Sequence[Launch]) -> None:
    """Runs the launches once, and waits; raises what they broke."""
    for one in launches:
        one.on(gpu.stream)
    gpu.stream.sync()


def broken(gpu: Gpu) -> bool:
    """An earlier launch has left this process without a usable GPU."""
    return int(driver.cuCtxSynchronize()[0]) != 0


def _version() -> int:
    return _number(*driver.cuDriverGetVersion())


def _numbers(status: Any, *values: Any) -> tuple[int, ...]:
    """What a call of the driver's gave; raises RuntimeError with the status where it failed."""
    if int(status):
        raise RuntimeError(f"the CUDA driver says {getattr(status, 'name', status)}")
    return tuple(int(v) for v in values)


def _number(status: Any, *values: Any) -> int:
    return (*_numbers(status, *values), 0)[0]


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
