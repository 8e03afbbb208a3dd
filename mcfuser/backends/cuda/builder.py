"""Kernels for an NVIDIA GPU, compiled side by side by Triton and ptxas."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mcfuser.backend import Kernel
from mcfuser.chain import Chain
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers, Pending
from mcfuser.codegen.triton import TritonSource
from mcfuser.device import Device
from mcfuser.lowering.triton.instructions import waits
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal

COMPILING = 50.0
"""Seconds times compilers that a search may take: most settle before that, and those that do not
gain a few percent at most."""
WAITING = 16.0
"""Seconds that it may take at most, however few compilers there are."""


@dataclass(frozen=True)
class CubinBuilding:
    """A source that is being compiled."""

    chain: Chain
    source: TritonSource
    arch: str
    pending: Pending
    compilers: Compilers

    @property
    def done(self) -> Future[Any]:
        return self.pending

    def kernel(self) -> Kernel:
        made = self.compilers.outcome(self.pending, self.source, self.arch)
        if isinstance(made, Illegal):
            raise made
        return compiled(self.chain, self.source, made)


def compiled(chain: Chain, source: TritonSource, binary: Binary) -> Kernel:
    """The kernel of a source and its binary."""
    resources = {
        "shared": binary.shared, "registers": binary.registers, "spills": binary.spills,
    }  # fmt: skip
    return Kernel(chain, source.text, triton.to_record(source), binary.cubin, resources)


class CudaBuilder:
    """Compilers of Triton's, as many as the machine has cores if `cores` is None."""

    def __init__(self, device: Device, cores: int | None = None) -> None:
        self.device = device
        self.compilers = Compilers(cores or os.cpu_count() or 1)
        self.early = Compilers(self.compilers.workers)
        self._ahead = dict[str, tuple[TritonSource, Pending]]()

    @property
    def workers(self) -> int:
        return self.compilers.workers

    @property
    def longest(self) -> float:
        return self.compilers.longest

    @property
    def enough(self) -> float:
        return min(WAITING, COMPILING / self.workers)

    def warm(self) -> None:
        self.compilers.warm()

    def begin(
        self, chain: Chain, schedule: Schedule, name: str, settings: TritonKnobs
    ) -> CubinBuilding:
        source = self._source(schedule, name, settings)
        known, pending = self._ahead.get(name, (None, None))
        if pending is None or known != source:
            pending = self.compilers.begin(source, self.device.arch)
        else:
            del self._ahead[name]
        return CubinBuilding(chain, source, self.device.arch, pending, self.compilers)

    def ahead(self, chain: Chain, schedule: Schedule, name: str, settings: TritonKnobs) -> None:
        source = self._source(schedule, name, settings)
        self._ahead[name] = source, self.early.begin(source, self.device.arch)

    def foreseen(self, name: str) -> bool:
        return name in self._ahead

    def _source(self, schedule: Schedule, name: str, settings: TritonKnobs) -> TritonSource:
        return triton.generate(schedule, name, settings, waits(self.device.arch))

    def abandon(self) -> None:
        self.compilers.abandon()

    def stop(self) -> None:
        self._ahead.clear()
        self.early.stop()
        self.compilers.stop()
