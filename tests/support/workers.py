"""Workers that measure nothing: times are made up, or there is no device."""

from __future__ import annotations

import math

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.backends.cuda.builder import CudaBuilder
from mcfuser.device import Device
from mcfuser.measure.worker import Worker
from tests.support.compiled import Remembering


class StandIn(Worker):
    """The device is at hand, and no process measures; what derives from it makes up `measure`."""

    def __init__(self, device: Device, backend: Backend | None = None) -> None:
        super().__init__(backend or backend_of(device), device, cores=2)
        if isinstance(self.builder, CudaBuilder):
            self.builder.compilers, self.builder.early = Remembering(2), Remembering(2)

    def warm(self) -> None: ...

    def refused(self, deadline: float = math.inf) -> str | None:
        return None

    def announce(self, chain, seed, together, offsets, varied=False) -> None: ...


class Away(StandIn):
    """The device is not at hand."""

    def refused(self, deadline: float = math.inf) -> str | None:
        return "no NVIDIA GPU is at hand"
