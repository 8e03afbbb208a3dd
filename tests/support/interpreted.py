"""A third back end: it "compiles" a schedule to the NumPy interpreter, and a kernel takes as long
as the bytes that it moves."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mcfuser.backend import Function, Kernel, Names, Occupancy
from mcfuser.chain import Chain, ChannelsLast
from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.device import Device
from mcfuser.measure.case import Case
from mcfuser.measure.request import KernelSequence, Measured, MeasureRequest, failure
from mcfuser.measure.rounds import round_limits, time_interleaved
from mcfuser.measure.runner import Bound
from mcfuser.space.interpret import interpret
from mcfuser.space.knobs import Columns, knob
from mcfuser.space.plan import Floats, Ints, Plan, traffic
from mcfuser.space.reference import decode, encode, logical
from mcfuser.space.schedule import Schedule

BYTES_PER_SECOND = 1e9
DEVICE = Device(
    "interpreted", "interpreted", "numpy", 4, (("float32", 1e9),), BYTES_PER_SECOND, 1 << 20
)


@dataclass(frozen=True, slots=True)
class InterpretedKnobs:
    """A knob that changes nothing but a factor in the time."""

    unroll: int = knob(1, (1, 2))


@dataclass(frozen=True)
class Pickled:
    made: Kernel

    @property
    def done(self) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(None)
        return found

    def kernel(self) -> Kernel:
        return self.made


@dataclass(frozen=True)
class Pickler:
    workers: int = 1
    longest: float = math.inf
    enough: float = math.inf

    def warm(self) -> None: ...

    def begin(self, chain, schedule: Schedule, name: str, settings: InterpretedKnobs) -> Pickled:
        launch = {"unroll": settings.unroll, "tensors": [t.name for t in chain.tensors]}
        return Pickled(Kernel(chain, str(schedule), launch, pickle.dumps(schedule)))

    def ahead(self, chain, schedule, name, settings) -> None: ...

    def foreseen(self, name: str) -> bool:
        return False

    def abandon(self) -> None: ...

    def stop(self) -> None: ...


class Interpreted:
    kind: str = "interpreted"
    knobs: type = InterpretedKnobs
    sources: tuple[str, ...] = ("space",)
    soft: Mapping[str, int] = MappingProxyType({})
    runner = "tests.support.interpreted"
    trusted = True
    on_host = True
    starting = 0.0
    installing = 0.0
    leaving = 0.0
    limit = 600.0
    slowest = 1e7
    memory: int | None = None
    lines = False
    walks = False
    integers = True

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        return (("numpy", np.__version__),)

    def driver(self) -> str:
        return ""

    def tiled(self, chain: Chain, device: Device) -> Chain:
        return chain

    def channels_last(self, device: Device) -> ChannelsLast:
        return "always"

    def tf32(self, device: Device) -> bool:
        return True

    def recurrences(self, device: Device) -> RecurrenceLimits:
        return NO_RECURRENCES

    def feasible(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Any:
        return np.ones(len(tiles), bool)

    def estimate(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        return traffic(plan, tiles) / device.bandwidth / settings["unroll"]

    def held(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        return np.zeros(len(tiles))

    def builder(self, device: Device, cores: int | None = None) -> Pickler:
        return Pickler()

    def unfit(self, kernel: Kernel, device: Device, measured: bool) -> str | None:
        return None

    def occupancy(self, kernel: Kernel, device: Device) -> Occupancy | None:
        return None

    def missing(self) -> str | None:
        return None

    def environment(self, device: Device) -> Mapping[str, str]:
        return {}

    def renamed(self, kernel: Kernel, chain, names: Names) -> Kernel:
        if list(names.tensors.values()) != kernel.launch["tensors"]:
            raise ValueError("a pickled schedule keeps its names")
        return replace(kernel, chain=chain)

    def function(self, kernel, chain, names, name, shapes) -> Function:
        raise NotImplementedError("interpreted kernels are no functions of a TVM module")

    def packed(self, function, chain, constants) -> dict[str, Any]:
        return {}

    def library(self, module: Any, binaries: Any, device: Device) -> bytes:
        raise NotImplementedError("there is no TVM module of interpreted kernels")


INTERPRETED = Interpreted()


# --- in the process that measures -----------------------------------------------------------


@dataclass(frozen=True)
class InterpretedRunner:
    resource: str = "interpreted"
    builds: bool = False

    def attend(self, case: Case) -> None: ...

    def build(self, program: KernelSequence) -> list[tuple[Kernel, Schedule]]:
        return [(kernel, pickle.loads(kernel.binary)) for kernel in program]

    def bind(self, built: Sequence[tuple[Kernel, Schedule]], case: Case) -> Bound:
        tensors = {
            n: decode(logical(case.chain, n, a), case.chain.tensor(n).dtype)
            for n, a in case.made.data.items()
        }
        moved = []

        def run() -> None:
            for kernel, schedule in built:
                found, count = interpret(schedule, {n: tensors[n] for n in kernel.chain.inputs})
                tensors.update(found)
                elements = sum(count.loaded.values()) + sum(count.stored.values())
                moved.append(4 * elements / kernel.launch["unroll"])

        def outputs() -> dict[str, Any]:
            return {
                n: encode(tensors[n], case.chain.tensor(n).dtype).reshape(-1)
                for n in case.chain.outputs
            }

        return Bound(run, outputs, moved)

    def timed(
        self, programs: Sequence[Bound], request: MeasureRequest
    ) -> tuple[list[list[float]], dict[str, Any]]:
        seconds = [sum(p.launches) / BYTES_PER_SECOND for p in programs]
        bounds = round_limits(7, 7, 1.0, request.until, request.baseline, 0.0)
        return time_interleaved([lambda s=s: s for s in seconds], bounds, lambda: 0.0), {}

    def failed(self, error: Exception) -> Measured:
        return failure(f"it fails: {type(error).__name__}: {error}")


def open_device(name: str) -> InterpretedRunner:
    return InterpretedRunner()
