"""The CPU in the process that measures: programs are compiled by TVM, and timed call by call."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from mcfuser.backend import Kernel
from mcfuser.chain import Chain
from mcfuser.codegen.tensorir import Panels, TensorirSource, from_record, shaped
from mcfuser.codegen.tensorir.build import compile_function, pack
from mcfuser.measure.busy import watched
from mcfuser.measure.case import Case, stored_buffer
from mcfuser.measure.request import KernelSequence, Measured, MeasureRequest, at_extents, failure
from mcfuser.measure.rounds import round_limits, time_interleaved
from mcfuser.measure.runner import Bound
from mcfuser.space.reference import Array, logical

ROUND = 2e-3
"""Seconds that one timed round of calls should last."""
LATE = 10 * ROUND
"""Seconds after which a round ends where calls take longer than they first did."""
GROUP = 5e-5
"""Seconds of calls that are timed as one, so that reading the clock is no part of the figure."""
ROUNDS = 7
MOST_ROUNDS = 7 * 32
EXTRA = 5.0
"""Seconds for which programs are timed in turns at most, where fewer rounds do not settle it."""
FEW_ROUNDS = 3
FEW_MOST_ROUNDS = 12
"""For programs of which one call lasts longer than LONG seconds."""
LONG = 0.1
KEPT = 256
"""Compiled functions that are kept: compiling one again takes a tenth of a second or more."""


@dataclass(frozen=True)
class Built:
    """A compiled kernel, and how it is called."""

    kernel: Kernel
    source: TensorirSource
    call: Callable[..., None]
    seconds: float
    """Seconds of a core in which it was compiled."""


@dataclass(frozen=True)
class CpuRunner:
    """The CPU at hand."""

    resource: str = "cpu"
    builds: bool = True
    compiled: Callable[[str, str], tuple[Callable[..., None], float]] = field(
        default_factory=lambda: lru_cache(KEPT)(_compiled), repr=False, compare=False
    )
    """The functions by their text and name, and how long the compiler took. Finalists, and the
    covers of a chain, are asked about again with other inputs."""

    def attend(self, case: Case) -> None:
        """A CPU has the inputs where they were made."""

    def build(self, program: KernelSequence) -> list[Built]:
        found = []
        for kernel in program:
            source = read(kernel)
            found.append(Built(kernel, source, *self.compiled(source.text, source.name)))
        return found

    def bind(self, built: Sequence[Built], case: Case) -> Bound:
        tensors: dict[str, Any] = {}
        calls = [(b.call, _arguments(b, case, tensors)) for b in built]

        def run() -> None:
            for function, arguments in calls:
                function(*arguments)

        def outputs() -> Mapping[str, Array]:
            return {n: _flat(tensors[n]) for n in case.chain.outputs}

        return Bound(run, outputs, compiled=sum(b.seconds for b in built))

    def timed(
        self, programs: Sequence[Bound], request: MeasureRequest
    ) -> tuple[list[list[float]], dict[str, Any]]:
        ready, round_, longest = list[Callable[[], float]](), 0.0, 0.0
        for run in (p.run for p in programs):
            once = _seconds(run, 1, 1)
            group = max(1, int(GROUP / max(once, 1e-7)))
            groups = max(1, int(ROUND / max(once * group, 1e-7)))
            ready.append(partial(_seconds, run, groups, group))
            round_, longest = round_ + once * group * groups, max(longest, once)
        least = ROUNDS if longest < LONG else FEW_ROUNDS
        most = MOST_ROUNDS if longest < LONG else FEW_MOST_ROUNDS
        seconds = max(EXTRA, 3 * least * round_ if request.baseline is not None else 0.0)
        bounds = round_limits(
            least, most if len(programs) > 1 else least, seconds, request.until, request.baseline,
            time.monotonic(),
        )  # fmt: skip
        with _own_core(), watched() as state:
            times = time_interleaved(ready, bounds, time.monotonic)
        return times, state

    def failed(self, error: Exception) -> Measured:
        words = str(error).strip().splitlines() or [type(error).__name__]
        return failure(f"it fails: {words[0][:200]}")


def open_device(name: str) -> CpuRunner:
    """The CPU is always there."""
    return CpuRunner()


def _compiled(text: str, name: str) -> tuple[Callable[..., None], float]:
    begun = time.thread_time()
    function = compile_function(text, name)
    return function, time.thread_time() - begun


def read(kernel: Kernel) -> TensorirSource:
    """The function of a kernel, as its source and launch say."""
    chain = kernel.chain
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    return from_record(kernel.launch, kernel.source, *same)


def _arguments(built: Built, case: Case, tensors: dict[str, Any]) -> list[Any]:
    """What a kernel is called with; `tensors` holds those that kernels before it have left."""
    kernel, data = built.kernel, case.made.data
    part = at_extents(kernel.chain, {a.name: case.chain.size(a.name) for a in case.chain.axes})
    panels: Mapping[str, Panels] = dict(built.source.packed)
    with_shape = frozenset(shaped(kernel.chain))
    arguments: list[Any] = []
    for name in part.inputs:
        if name in panels:
            matrix = pack(logical(case.chain, name, data[name]), panels[name])
            arguments.append(tvm.runtime.tensor(_typed(part, name, matrix)))
            continue
        if name not in tensors:
            tensors[name] = _tensor(part, name, data[name], name in with_shape)
        arguments.append(tensors[name])
    arguments += [part.size(a) for a in built.source.scalars]
    for name in part.outputs:
        empty = stored_buffer(part, name)
        empty.view(np.uint8)[:] = 0xFF  # not a number
        tensors[name] = _tensor(part, name, empty, name in with_shape)
        arguments.append(tensors[name])
    return arguments


def _tensor(part: Chain, name: str, flat: Array, with_shape: bool) -> Any:
    """An array as the kernel takes it."""
    flat = _typed(part, name, flat)
    return tvm.runtime.tensor(flat.reshape(part.shape(name)) if with_shape else flat)


def _typed(part: Chain, name: str, flat: Array) -> Array:
    """The elements of a tensor with its own type: reference.encode writes bfloat16 as uint16."""
    return flat.view(ml_dtypes.bfloat16) if part.tensor(name).dtype == "bfloat16" else flat


def _flat(tensor: Any) -> Array:
    found: Array = tensor.numpy().reshape(-1)
    return found.view(np.uint16) if found.dtype == ml_dtypes.bfloat16 else found


def _seconds(run: Callable[[], None], groups: int, group: int) -> float:
    """Seconds a call, the least of some groups of so many calls in a row: what else wants a core
    interrupts some of them, and makes none shorter."""
    least, begun = math.inf, time.perf_counter()
    for _ in range(groups):
        start = time.perf_counter()
        for _ in range(group):
            run()
        ended = time.perf_counter()
        least = min(least, ended - start)
        if ended - begun > LATE:
            break
    return least / group


@contextmanager
def _own_core() -> Iterator[None]:
    """Keeps this thread off the cores that TVM's pool has bound its own threads to: the system may
    leave both on one core for seconds, and a kernel then seems to take twice its time."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    mine, before = threading.get_native_id(), os.sched_getaffinity(0)
    bound: set[int] = set()
    for name in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(name)) if int(name) != mine else set()
            bound |= cores if len(cores) == 1 else set()
    os.sched_setaffinity(0, before - bound or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
