"""An NVIDIA GPU in the process that measures: kernels are launched from their binaries, and timed
as replayed graphs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mcfuser.backend import Kernel
from mcfuser.backends.cuda import driver
from mcfuser.backends.cuda.driver import DriverLaunch, Gpu
from mcfuser.backends.cuda.timing import REPLAYS, conditions, timed
from mcfuser.chain import BYTES, flat_size
from mcfuser.codegen.triton import TensorMap, TritonSource, from_record
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.case import Case, stored_buffer
from mcfuser.measure.request import KernelSequence, Measured, MeasureRequest, at_extents
from mcfuser.measure.rounds import round_limits
from mcfuser.measure.runner import Bound, Unusable
from mcfuser.space.reference import Array

MANY = 21
"""Replays of finalists, which are timed in turns, and"""
MOST = 21 * 8
"""the most where fewer do not settle which is the fastest, within"""
EXTRA = 1.5
"""seconds."""


@dataclass
class GpuRunner:
    """The GPU at hand, with the inputs of one case on it."""

    gpu: Gpu
    builds: bool = False
    _case: Case | None = None
    _inputs: dict[str, Any] = field(default_factory=dict)
    _host: dict[str, Array] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return f"gpu-{self.gpu.uuid}"

    def attend(self, case: Case) -> None:
        if case is not self._case:
            self._case, self._inputs, self._host = case, {}, {}

    def build(self, program: KernelSequence) -> KernelSequence:
        return program

    def bind(self, built: KernelSequence, case: Case) -> Bound:
        """Kernels pass tensors by name; what they write is theirs alone."""
        tensors = dict(self._placed(case))
        launches: list[DriverLaunch] = []
        for kernel in built:
            launches += _launches(self.gpu, kernel, case, tensors)
        for name, buffer in tensors.items():
            if name not in self._inputs:
                driver.poison(self.gpu, buffer)

        def run() -> None:
            driver.run(self.gpu, launches)

        def outputs() -> Mapping[str, Array]:
            return {n: self._copied(n, tensors[n], case) for n in case.chain.outputs}

        return Bound(run, outputs, launches)

    def timed(
        self, programs: Sequence[Bound], request: MeasureRequest
    ) -> tuple[list[list[float]], dict[str, Any]]:
        least = MANY if request.together else REPLAYS
        most = MOST if request.together and len(programs) > 1 else least
        bounds = round_limits(least, most, EXTRA, request.until, request.baseline, time.monotonic())
        rounds = timed(self.gpu, [p.launches for p in programs], bounds)
        return rounds, conditions(self.gpu)

    def failed(self, error: Exception) -> Measured:
        if isinstance(error, Unusable):
            return _unusable(error)
        broken = driver.broken(self.gpu)
        if driver.is_full(error) and not broken:
            return _unusable(driver.full(self.gpu.handle))
        words = str(error).strip().splitlines() or [type(error).__name__]
        first = words[0].partition(". ")[0][:200]
        return Measured(None, None, f"the GPU refuses it: {first}", fatal=broken)

    def _placed(self, case: Case) -> Mapping[str, Any]:
        """A case's inputs on the GPU."""
        self.attend(case)
        if not self._inputs:
            self._inputs |= {n: driver.upload(self.gpu, a) for n, a in case.made.data.items()}
        return self._inputs

    def _copied(self, name: str, buffer: Any, case: Case) -> Array:
        """An output in the type's bytes; the memory for it is taken once, for it may be long."""
        if name not in self._host:
            self._host[name] = driver.pinned(stored_buffer(case.chain, name))
        return driver.download(self.gpu, buffer, self._host[name])


def _unusable(reason: Unusable) -> Measured:
    """The GPU is not to be measured on; the program is not to blame."""
    return Measured(None, None, str(reason), unusable=True)


def open_device(name: str) -> GpuRunner:
    """The first GPU of this machine that is the device of that name. Raises Unusable."""
    return GpuRunner(driver.find(device_named(name)))


def read(kernel: Kernel) -> TritonSource:
    """How a kernel is launched."""
    chain = kernel.chain
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    return from_record(kernel.launch, kernel.source, *same)


def _launches(gpu: Gpu, kernel: Kernel, case: Case, tensors: dict[str, Any]) -> list[DriverLaunch]:
    """A kernel's launches on buffers; `tensors` holds those that kernels before it have left."""
    source, sizes = read(kernel), {a.name: case.chain.size(a.name) for a in case.chain.axes}
    part = at_extents(kernel.chain, sizes)
    sizes = {a.name: part.size(a.name) for a in part.axes}
    for name in part.outputs:
        nbytes = flat_size(part, name) * BYTES[part.tensor(name).dtype]
        tensors[name] = driver.allocate(gpu, nbytes)
    workspaces = {}
    for w in source.workspace:
        workspaces[w.name] = driver.allocate(gpu, w.size * BYTES[w.dtype])
        (driver.clear if w.zero else driver.poison)(gpu, workspaces[w.name])
    binary, launches = driver.load(kernel.binary), list[DriverLaunch]()
    for one in source.launches:
        taken = [workspaces[n] if n in workspaces else tensors[n] for n in one.arguments]
        for m in one.maps:
            taken += _mapped(m, int(tensors[m.tensor].handle))
        taken += [np.int32(sizes[a]) for a in one.extents]
        launches.append(driver.prepare(gpu, binary, one.name, one.blocks(sizes), source.threads,
                                    kernel.resources["shared"], taken))  # fmt: skip
    return launches


def _mapped(m: TensorMap, address: int) -> list[Any]:
    """What a kernel takes for a tensor map of a buffer at an address."""
    return driver.tensor_map(address + m.start, m.dtype, m.shape, m.strides, m.part, m.swizzle)
