"""Measuring on a GPU in a process that may die: what a program computes is checked, then timed."""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType, TracebackType
from typing import Any

from mcfuser.chain import Chain, to_json
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import Source, TensorMap
from mcfuser.device import Device
from mcfuser.measure.worker import Measured, at, lasting, measured, request_of
from mcfuser.process.child import NO_TIME, Child

START = 30.0
"""Seconds that the process may take until it has the GPU."""


@dataclass(frozen=True)
class GpuKernel:
    """A compiled kernel and the chain that it computes."""

    chain: Chain
    source: Source
    binary: Binary


GpuProgram = Sequence[GpuKernel]
"""Kernels run in order; they pass tensors by name."""


class GpuWorker:
    """A child process that measures on the GPU at hand; use it as a context manager.

    `limit` is the longest that one program may take, seconds; what hangs, faults or leaves the
    GPU unusable costs itself and a new child. Beside it `compilers` make what it measures.
    """

    def __init__(self, device: Device, limit: float = 20.0, cores: int | None = None) -> None:
        self.device, self.limit = device, limit
        self.compilers = Compilers(cores or os.cpu_count() or 1)
        self._child = Child("mcfuser.backends.cuda.runner", [device.name])
        self._refused: str | None = None
        self._greeted = False

    def __enter__(self) -> GpuWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._child.stop()
        self.compilers.stop()

    def warm(self) -> None:
        """Starts the child, which takes a second to open the GPU, and the compilers; does not
        wait."""
        if self._refused is None and not self._child.alive:
            if self._refuse_missing():
                return
            self._child.start()
            self._greeted = False
            self.compilers.warm()

    def refused(self, deadline: float = math.inf) -> str | None:
        """Why this machine cannot measure for the device, in one sentence; None where it can."""
        self.warm()
        if self._refused is None and not self._greeted:
            told = self._child.line(START, deadline)
            if told == NO_TIME:
                return "no time was left to open the GPU"  # there may be for the next chain
            if isinstance(told, str):
                self._refused = f"no GPU could be opened: {told}"
            else:
                self._refused = told["failed"]
            self._greeted = True
        return self._refused

    def _refuse_missing(self) -> bool:
        """What is missing on this machine is told without starting a process."""
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            self._refused = "no NVIDIA GPU is at hand: its driver is not installed"
            return True
        if not _installed("cuda.core"):
            self._refused = (
                "measuring on a GPU needs the package cuda-core, which is not installed; "
                "install mcfuser with its gpu extra: pip install 'mcfuser[gpu]'"
            )
        return self._refused is not None

    def ahead(
        self, chain: Chain, seed: int, together: bool, offsets: Mapping[str, float],
        varied: bool = False,
    ) -> None:  # fmt: skip
        """Says what will be measured: inputs and what is expected are made meanwhile."""
        self.warm()
        if self._child.alive:
            request = _request(chain, (), seed, together, offsets, varied) | {"ahead": True}
            list(self._child.ask(request, 0, self.limit))

    def measure(
        self,
        chain: Chain,
        programs: Sequence[GpuProgram],
        seed: int,
        together: bool = False,
        deadline: float = math.inf,
        offsets: Mapping[str, float] = MappingProxyType({}),
        varied: bool = False,
        extents: Mapping[str, int] = MappingProxyType({}),
        baseline: int | None = None,
    ) -> list[Measured]:
        """Checks and times programs that compute `chain`, on inputs drawn from `seed`: normal ones
        of deviation one, around zero or, by name, around `offsets`; with `varied`, of different
        signs and scales (mcfuser.measure.inputs).

        Extents that are known at run time only are those given, or at their upper bounds.
        `together` checks whole tensors and times the programs in turns, for a comparison that
        drift does not touch, until it is sure which is the fastest; with a `baseline`, whether one
        is faster than that (mcfuser.measure.rounds). What is not done at the `deadline`
        (time.monotonic) fails with NO_TIME.
        """
        found: list[Measured] = []
        while len(found) < len(programs):
            if time.monotonic() >= deadline:
                found += [Measured(None, None, NO_TIME)] * (len(programs) - len(found))
                break
            if (why := self.refused(deadline)) is not None:
                found += [Measured(None, None, why)] * (len(programs) - len(found))
                break
            part = programs[len(found) :]
            request = _request(chain, part, seed, together, offsets, varied, extents)
            request |= lasting(baseline, len(found), deadline)
            for answer in self._child.ask(request, len(part), self.limit, deadline):
                found.append(measured(answer))
                if isinstance(answer, dict) and answer["over"]:
                    self._child.stop()
                    break
        return found


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _request(
    chain: Chain, programs: Sequence[GpuProgram], seed: int, together: bool,
    offsets: Mapping[str, float], varied: bool,
    extents: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    encoded = [[_kernel(k, extents) for k in p] for p in programs]
    made = request_of(at(chain, extents), encoded, seed, together, offsets, varied)
    return made | {"whole": together, "ahead": False}


def _kernel(k: GpuKernel, extents: Mapping[str, int]) -> Mapping[str, Any]:
    there = at(k.chain, extents)
    sizes = {a.name: there.size(a.name) for a in there.axes}
    return {
        "chain": to_json(there),
        "cubin": base64.b64encode(k.binary.cubin).decode(),
        "threads": k.binary.threads,
        "shared": k.binary.shared,
        "launches": [
            {"name": one.name, "arguments": one.arguments, "blocks": one.blocks(sizes),
             "extents": [sizes[a] for a in one.extents], "maps": [_map(m) for m in one.maps]}
            for one in k.source.launches
        ],
        "workspace": [asdict(w) for w in k.source.workspace],
    }  # fmt: skip


def _map(m: TensorMap) -> Mapping[str, Any]:
    return asdict(m) | {"start": m.start, "part": m.part, "swizzle": m.swizzle}
