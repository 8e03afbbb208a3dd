"""An NVIDIA GPU through cuda-core: memory, and kernels from cubins.

Only processes that measure import this; it needs the optional dependencies `mcfuser[gpu]`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver, nvml
from cuda.core import Device as Handle
from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
from numpy.typing import NDArray

from mcfuser.chain import BYTES
from mcfuser.device import Device
from mcfuser.measure.runner import Unusable

OLDEST = 12000
"""The oldest driver that cuda-core works with: CUDA 12.0, as the driver writes it."""
LARGE = 48 << 10
"""Shared memory above this must be asked for, bytes a block."""


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
class DriverLaunch:
    """A kernel with its launch parameters and arguments; `packed` are their bytes where some of
    them are of a kind that cuda-core does not pass."""

    kernel: Any
    config: Any
    arguments: tuple[Any, ...]
    packed: tuple[NDArray[np.uint8], ...] = ()

    def on(self, stream: Any) -> None:
        if not self.packed:
            launch(stream, self.config, self.kernel, *self.arguments)
            return
        config, given = driver.CUlaunchConfig(), self.config
        config.gridDimX, config.gridDimY, config.gridDimZ = given.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = given.block
        config.sharedMemBytes = given.shmem_size
        config.hStream = int(getattr(stream, "stream", stream).handle)  # a graph builder has one
        where = np.asarray([one.ctypes.data for one in self.packed], np.uint64)
        function = driver.CUfunction(int(self.kernel.handle))
        _number(*driver.cuLaunchKernelEx(config, function, where.ctypes.data, 0))


def offered() -> str:
    """The newest CUDA that the driver offers, once it has started. Raises Unusable where that is
    too old, RuntimeError where it cannot start."""
    number = _number(*driver.cuDriverGetVersion())  # an old driver may lack what follows
    if number < OLDEST:
        raise Unusable(
            f"the NVIDIA driver offers CUDA {_dotted(number)}, and measuring needs "
            f"{_dotted(OLDEST)}; update the driver"
        )
    _numbers(*driver.cuInit(0))
    return _dotted(number)


def find(device: Device) -> Gpu:
    """The first GPU of this machine that is the device asked for; raises Unusable."""
    try:
        version = offered()
        handles = Handle.get_all_devices()
    except Unusable:
        raise
    except Exception as error:  # cuda-core raises what its loader happens to raise
        raise Unusable(f"no NVIDIA GPU is at hand: {first_line(error)}") from None
    if not handles:
        raise Unusable("no NVIDIA GPU is at hand")
    for handle in handles:
        if is_device(handle.name, f"sm_{handle.arch}", device):
            return _opened(handle, version)
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
        if is_full(error):
            raise full(handle) from None
        raise Unusable(f"{handle.name} cannot be used: {first_line(error)}") from None


# --- memory ---------------------------------------------------------------------------------


def allocate(gpu: Gpu, size: int) -> Any:
    """Device memory of so many bytes; raises Unusable where the GPU has no more."""
    try:
        return gpu.handle.memory_resource.allocate(max(size, 16), stream=gpu.stream)
    except Exception as error:
        if is_full(error):
            raise full(gpu.handle, size) from None
        raise


def is_full(error: BaseException) -> bool:
    """The error says that the GPU has no memory left."""
    return "OUT_OF_MEMORY" in str(error)


def full(handle: Any, size: int = 0) -> Unusable:
    """That a GPU has too little memory left, for so many bytes or at all."""
    free, total = _memory(handle)
    if size > total > 0:
        return Unusable(f"{handle.name} has {total >> 20} MiB, and {size >> 20} are needed")
    wanted = f"the {size >> 20} MiB that" if size >> 20 else "what"
    left = f"{free >> 20} of its {total >> 20} MiB left, too few" if total else "too little memory"
    return Unusable(
        f"{handle.name} has {left} for {wanted} measuring needs: end the process that fills it, "
        "or wait until it is done"
    )


def _memory(handle: Any) -> tuple[int, int]:
    """Free and all bytes, zero where nobody tells."""
    with contextlib.suppress(nvml.NvmlError, RuntimeError):  # its library may be missing
        nvml.init_v2()
        told = nvml.device_get_memory_info_v2(nvml.device_get_handle_by_uuid(str(handle.uuid)))
        return int(told.free), int(told.total)
    with contextlib.suppress(RuntimeError):  # without a context there is no answer
        free, total = _numbers(*driver.cuMemGetInfo())
        return free, total
    return 0, 0


def upload(gpu: Gpu, array: NDArray[Any]) -> Any:
    """A copy of an array on the GPU."""
    array = np.ascontiguousarray(array)
    buffer = allocate(gpu, array.nbytes)
    gpu.stream.sync()
    _number(*driver.cuMemcpyHtoD(int(buffer.handle), array.ctypes.data, array.nbytes))
    return buffer


def download(gpu: Gpu, buffer: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Copies a buffer of the GPU into an array."""
    gpu.stream.sync()
    _number(*driver.cuMemcpyDtoH(array.ctypes.data, int(buffer.handle), array.nbytes))
    return array


def pinned(like: NDArray[Any]) -> NDArray[Any]:
    """Memory for an array like this one that stays where it is, so that a GPU copies to it several
    times as fast; the array itself where there is none left."""
    try:
        buffer = LegacyPinnedMemoryResource().allocate(max(like.nbytes, 16))
    except Exception as error:
        if is_full(error):
            return like
        raise
    memory: NDArray[Any] = np.from_dlpack(buffer)  # which it keeps
    return memory.view(np.uint8)[: like.nbytes].view(like.dtype).reshape(like.shape)


def poison(gpu: Gpu, buffer: Any) -> None:
    """All bits set: NaN in every float type, so an element that nobody writes is found."""
    buffer.fill(0xFF, stream=gpu.stream)


def clear(gpu: Gpu, buffer: Any) -> None:
    """Zeros."""
    buffer.fill(0, stream=gpu.stream)


# --- tensor maps ----------------------------------------------------------------------------


def tensor_map(
    address: int, dtype: str, shape: Sequence[int], strides: Sequence[int], box: Sequence[int],
    swizzle: int,
) -> list[Any]:  # fmt: skip
    """What a kernel takes for a tensor map: the map itself, the tensor's shape, its strides.

    `strides` are in elements, `box` is what one instruction copies, `swizzle` in bytes. Raises
    RuntimeError where the driver refuses it.
    """
    size, rank = BYTES[dtype], len(shape)
    few, many = driver.cuuint32_t, driver.cuuint64_t
    kind = f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"
    status, found = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}"),
        few(rank), address, [many(n) for n in reversed(shape)],
        [many(n * size) for n in reversed(strides[:-1])],
        [few(n) for n in reversed(box)], [few(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, kind),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    _number(status)
    return [found, *map(np.int32, shape), *map(np.int64, strides)]


def _packed(argument: Any) -> NDArray[np.uint8]:
    """An argument as the bytes that a kernel takes."""
    if isinstance(argument, driver.CUtensorMap):
        return np.asarray([int(n) for n in argument.opaque], np.uint64).view(np.uint8)
    if not isinstance(argument, np.generic):
        argument = np.uint64(int(argument.handle))
    return np.frombuffer(argument.tobytes(), np.uint8)


# --- kernels --------------------------------------------------------------------------------


def load(cubin: bytes) -> Any:
    """A binary in the GPU's memory."""
    return ObjectCode.from_cubin(cubin)


def prepare(
    gpu: Gpu, binary: Any, name: str, grid: Sequence[int], threads: int, shared: int,
    arguments: Sequence[Any],
) -> DriverLaunch:  # fmt: skip
    """A kernel of Triton's ready to launch; its two last pointers, for scratch memory, are null.

    Arguments are buffers, NumPy scalars, and what `tensor_map` gives.
    """
    kernel = binary.get_kernel(name)
    if shared > LARGE:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done = driver.cuKernelSetAttribute(
            attribute, shared, driver.CUkernel(int(kernel.handle)), gpu.handle.device_id
        )
        _number(*done)
    config = LaunchConfig(grid=tuple(grid), block=(threads, 1, 1), shmem_size=shared)
    every = (*arguments, np.uint64(0), np.uint64(0))
    mapped = any(isinstance(a, driver.CUtensorMap) for a in arguments)
    return DriverLaunch(kernel, config, every, tuple(map(_packed, every)) if mapped else ())


def run(gpu: Gpu, launches: Sequence[DriverLaunch]) -> None:
    """Runs the launches once, and waits; raises what they broke."""
    for one in launches:
        one.on(gpu.stream)
    gpu.stream.sync()


def broken(gpu: Gpu) -> bool:
    """An earlier launch has left this process without a usable GPU."""
    return int(driver.cuCtxSynchronize()[0]) != 0


def _numbers(status: Any, *values: Any) -> tuple[int, ...]:
    """What a call of the driver's gave; raises RuntimeError with the status where it failed."""
    if int(status):
        raise RuntimeError(f"the CUDA driver says {getattr(status, 'name', status)}")
    return tuple(int(v) for v in values)


def _number(status: Any, *values: Any) -> int:
    return (*_numbers(status, *values), 0)[0]


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def first_line(error: BaseException) -> str:
    """The first line of an error that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
