"""An NVIDIA GPU in the process that measures: kernels are launched from their binaries, and timed
as replayed graphs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mcfuser.backend import Kernel
from mcfuser.backends.cuda import driver
from mcfuser.backends.cuda.driver import DriverLaunch, Gpu
from mcfuser.backends.cuda.timing import LAUNCHES, REPLAYS, conditions, timed
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
COLD = 2.0
"""How many times what the cache holds is read between two uses of a copy of constants."""


@dataclass
class GpuRunner:
    """The GPU at hand, with the inputs of one case on it; `cache` is its last level before memory,
    in bytes.

    In a model a kernel's weights come from memory: those of the model's other kernels were read
    since its last run. So the chain's constants lie on the GPU several times, more than the cache
    holds, and the runs that are timed read one copy after another. Other inputs were written just
    before, and lie there once.
    """

    gpu: Gpu
    builds: bool = False
    cache: int = 0
    _case: Case | None = None
    _inputs: list[dict[str, Any]] = field(default_factory=list)
    _host: dict[str, Array] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return f"gpu-{self.gpu.uuid}"

    def attend(self, case: Case) -> None:
        if case is not self._case:
            self._case, self._inputs, self._host = case, [], {}

    def build(self, program: KernelSequence) -> KernelSequence:
        return program

    def bind(self, built: KernelSequence, case: Case) -> Bound:
        """Kernels pass tensors by name; what they write is theirs alone."""
        written: dict[str, Any] = {}
        kernels = [_loaded(self.gpu, kernel, case, written) for kernel in built]
        for buffer in written.values():
            driver.poison(self.gpu, buffer)
        turns = [
            [one for k in kernels for one in k.launches(self.gpu, {**inputs, **written})]
            for inputs in self._placed(case)
        ]

        def run() -> None:
            driver.run(self.gpu, turns[0])

        def outputs() -> Mapping[str, Array]:
            return {n: self._copied(n, written[n], case) for n in case.chain.outputs}

        return Bound(run, outputs, turns)

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

    def _placed(self, case: Case) -> Sequence[Mapping[str, Any]]:
        """A case's inputs on the GPU, once for each copy of its constants."""
        self.attend(case)
        if not self._inputs:
            arrays, chain = case.made.data, case.chain
            self._inputs.append({n: driver.upload(self.gpu, a) for n, a in arrays.items()})
            fixed = [n for n in chain.inputs if chain.tensor(n).constant]
            for _ in range(copies(sum(arrays[n].nbytes for n in fixed), self.cache) - 1):
                again = {n: driver.upload(self.gpu, arrays[n]) for n in fixed}
                self._inputs.append(self._inputs[0] | again)
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
    device = device_named(name)
    return GpuRunner(driver.find(device), cache=device.cache)


def copies(nbytes: int, cache: int) -> int:
    """How many copies of so many bytes of constants are read in turns, so that none of them is in
    the cache when its turn comes again; as many as a graph has launches at most."""
    return max(1, min(LAUNCHES, math.ceil(COLD * cache / nbytes) + 1)) if nbytes else 1


def read(kernel: Kernel) -> TritonSource:
    """How a kernel is launched."""
    chain = kernel.chain
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    return from_record(kernel.launch, kernel.source, *same)


@dataclass(frozen=True)
class _LoadedKernel:
    """A kernel in the GPU's memory: how it is launched at some extents, and its workspaces."""

    source: TritonSource
    binary: Any
    sizes: Mapping[str, int]
    shared: int
    workspaces: Mapping[str, Any]

    def launches(self, gpu: Gpu, tensors: Mapping[str, Any]) -> list[DriverLaunch]:
        """Its launches on buffers."""
        made = []
        for one in self.source.launches:
            taken = [
                self.workspaces[n] if n in self.workspaces else tensors[n] for n in one.arguments
            ]
            for m in one.maps:
                taken += _mapped(m, int(tensors[m.tensor].handle))
            taken += [np.int32(self.sizes[a]) for a in one.extents]
            made.append(driver.prepare(gpu, self.binary, one.name, one.blocks(self.sizes),
                                       self.source.threads, self.shared, taken))  # fmt: skip
        return made


def _loaded(gpu: Gpu, kernel: Kernel, case: Case, written: dict[str, Any]) -> _LoadedKernel:
    """A kernel on the GPU; `written` gets buffers for its outputs."""
    source, sizes = read(kernel), {a.name: case.chain.size(a.name) for a in case.chain.axes}
    part = at_extents(kernel.chain, sizes)
    sizes = {a.name: part.size(a.name) for a in part.axes}
    for name in part.outputs:
        nbytes = flat_size(part, name) * BYTES[part.tensor(name).dtype]
        written[name] = driver.allocate(gpu, nbytes)
    workspaces = {}
    for w in source.workspace:
        workspaces[w.name] = driver.allocate(gpu, w.size * BYTES[w.dtype])
        (driver.clear if w.zero else driver.poison)(gpu, workspaces[w.name])
    shared = kernel.resources["shared"]
    return _LoadedKernel(source, driver.load(kernel.binary), sizes, shared, workspaces)


def _mapped(m: TensorMap, address: int) -> list[Any]:
    """What a kernel takes for a tensor map of a buffer at an address."""
    return driver.tensor_map(address + m.start, m.dtype, m.shape, m.strides, m.part, m.swizzle)
