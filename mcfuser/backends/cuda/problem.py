"""A case on a GPU: its inputs there, and how far outputs are from what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from mcfuser.backends.cuda import driver as gpus
from mcfuser.backends.cuda.driver import Gpu
from mcfuser.chain import Chain
from mcfuser.measure.case import Case, stored_room
from mcfuser.space.reference import logical

Array = NDArray[Any]

BUDGET = 2e8
"""Flops of the reference that candidates are checked against: some tenths of a second."""
WHOLE = 4e9
"""The same for finalists: whole tensors, but for the longest sequences."""


@dataclass(frozen=True)
class Problem:
    """A case, on the host and on the GPU."""

    gpu: Gpu
    case: Case
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    @property
    def chain(self) -> Chain:
        return self.case.chain

    def prepare(self) -> None:
        """Draws the inputs and computes what is expected; by one thread, others wait for it."""
        with self.lock:
            _ = self.case.made

    @cached_property
    def buffers(self) -> dict[str, Any]:
        return {n: gpus.upload(self.gpu, a) for n, a in self.case.made.data.items()}

    def release(self) -> None:
        """Leaves the GPU's memory to others until the inputs are needed there again."""
        self.__dict__.pop("buffers", None)

    @cached_property
    def host(self) -> dict[str, Array]:
        """Where outputs are copied to, in the type's bytes; taken once, for they may be long."""
        return {n: gpus.pinned(stored_room(self.chain, n)) for n in self.chain.outputs}

    def error(self, outputs: Mapping[str, Any]) -> float | str:
        """The largest norm-wise relative error of the outputs; or what is wrong with them."""
        worst = 0.0
        for name, buffer in outputs.items():
            found = logical(self.chain, name, gpus.download(self.gpu, buffer, self.host[name]))
            error = self.case.error(name, found)
            if isinstance(error, str):
                return error
            worst = max(worst, error)
        return worst
