"""The builder of CPU kernels writes source alone: the process that measures compiles it."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass

from mcfuser.backend import Kernel
from mcfuser.chain import Chain
from mcfuser.codegen import tensorir
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.schedule import Schedule


@dataclass(frozen=True)
class Written:
    """A kernel that is done as soon as it is begun."""

    made: Kernel

    @property
    def done(self) -> Future[Kernel]:
        future: Future[Kernel] = Future()
        future.set_result(self.made)
        return future

    def kernel(self) -> Kernel:
        return self.made


@dataclass(frozen=True)
class SourceBuilder:
    """Writes kernels' source; nothing is compiled here."""

    workers: int = 1
    longest: float = math.inf
    enough: float = math.inf

    def warm(self) -> None:
        """Nothing has to start."""

    def begin(
        self, chain: Chain, schedule: Schedule, name: str, settings: TensorirKnobs
    ) -> Written:
        source = tensorir.generate(schedule, name, settings)
        return Written(Kernel(chain, source.text, tensorir.to_record(source)))

    def ahead(self, chain: Chain, schedule: Schedule, name: str, settings: TensorirKnobs) -> None:
        """A kernel is made no sooner."""

    def foreseen(self, name: str) -> bool:
        return False

    def abandon(self) -> None:
        """Nothing is being made."""

    def stop(self) -> None:
        """There is no process to end."""
