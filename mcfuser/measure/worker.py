"""Measures programs in a child process that may die: each is checked, then timed.

The child (mcfuser.measure.child) serves many requests. A program that crashes, hangs or runs out of
memory fails, and another child is started; nothing else is lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from mcfuser.algebra.hoist import shifted
from mcfuser.backend import Backend
from mcfuser.chain import Chain, flops
from mcfuser.device import Device
from mcfuser.expr import Cast, walk
from mcfuser.measure.request import Inputs, KernelSequence, Measured, MeasureRequest, failure
from mcfuser.measure.rounds import Interleaved, comparison, fastest
from mcfuser.process.child import NO_TIME, Child
from mcfuser.process.limits import Limits

T = TypeVar("T")

TOLERANCE: Mapping[str, float] = {
    "float32": 1e-5, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2
}  # fmt: skip
"""The largest norm-wise relative error against float64, by the types that a chain stores."""

OFFSETS: Mapping[str, float] = {
    "float32": 1e4, "tf32": 1e2, "float16": 1e2, "bfloat16": 1e1
}  # fmt: skip
"""The offset, in deviations, of inputs on which a hoisted shift is checked; by the input's type,
which must still keep some digits of the data."""

SAMPLED = 2e8
"""Flops of the reference that candidates are checked against: they take tenths of a second."""
WHOLE = 4e9
"""The same for finalists: whole tensors, except for the longest sequences."""

BATCH = 16
"""The number of programs of one request. A child that compiles builds all of them first."""
START = 30.0
"""Seconds that the child may take to open the device."""


class Worker:
    """A child process that measures programs on a device, and a builder of their kernels.

    It is a context manager that stops both. `limit` is the longest that one program may take, in
    seconds, besides what its flops take (Backend.slowest); the back end's own limit if None.
    `cores` is the number of processes that build (Backend.builder).
    """

    def __init__(
        self, backend: Backend, device: Device, limit: float | None = None, cores: int | None = None
    ) -> None:
        self.backend, self.device = backend, device
        self.limit = backend.limit if limit is None else limit
        self.builder = backend.builder(device, cores)
        self._child = Child(
            "mcfuser.measure.child",
            [backend.runner, device.name],
            backend.environment(device),
            Limits(memory=backend.memory),
        )
        self._refused: str | None = None
        self._greeted = False
        self.opened = False
        """Whether a child has opened the device, even if that child is gone."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def tiled(self, chain: Chain) -> Chain:
        """The chain as the back end tiles it for the device (Backend.tiled)."""
        return self.backend.tiled(chain, self.device)

    def stop(self) -> None:
        self._child.stop()
        self.builder.stop()

    def warm(self) -> None:
        """Starts the child and the builder without waiting for them. Opening a device takes a
        second."""
        if self._refused is None and not self._child.alive:
            self._refused = self.backend.missing()
            if self._refused is None:
                self._child.start()
                self._greeted = False
                self.builder.warm()

    def refused(self, deadline: float = math.inf) -> str | None:
        """Why this machine cannot measure on the device, in one sentence; None where it can."""
        self.warm()
        if self._refused is None and not self._greeted:
            greeting = self._child.greeting(START, deadline)
            if greeting == NO_TIME:  # the next chain may have more time
                return "no time was left to open the device"
            if isinstance(greeting, str):
                self._refused = f"{self.device.name} could not be opened: {greeting}"
            else:
                self._refused = greeting["failed"]
            self._greeted = True
            self.opened |= self._refused is None
        return self._refused

    def announce(
        self,
        chain: Chain,
        seed: int,
        together: bool,
        offsets: Mapping[str, float],
        varied: bool,
    ) -> None:
        """Has the child make a test case before it is asked to measure on it; does not wait."""
        self.warm()
        if self._child.alive:
            request = MeasureRequest(
                chain, _inputs(chain, seed, together, offsets, varied), ahead=True
            )
            list(self._child.ask(request.to_json(), 0, self._most(chain)))

    def measure(
        self,
        chain: Chain,
        programs: Sequence[KernelSequence],
        seed: int,
        together: bool = False,
        deadline: float = math.inf,
        offsets: Mapping[str, float] = MappingProxyType({}),
        varied: bool = False,
        extents: Mapping[str, int] = MappingProxyType({}),
        baseline: int | None = None,
        batch: int = BATCH,
    ) -> list[Measured]:
        """Checks and times programs that compute `chain`; gives one answer for each, in order.

        Inputs are drawn from `seed`, around `offsets`, `varied` or not (Inputs). Run-time extents
        are those given, others are at their upper bounds. If `together`, whole tensors are checked
        and the programs are timed interleaved, so that drift does not matter, until it is sure
        which one is the fastest or, with a `baseline` (a number), whether one is faster than that.
        A child that compiles builds `batch` programs before it times the first of them. Programs
        that are not done at the `deadline` (time.monotonic) fail with NO_TIME.
        """
        inputs = _inputs(chain, seed, together, offsets, varied)
        results: list[Measured] = []
        while len(results) < len(programs):
            why = NO_TIME if time.monotonic() >= deadline else self.refused(deadline)
            if why is not None:
                return results + [failure(why)] * (len(programs) - len(results))
            first = len(results)
            part = programs[first:][: len(programs) if together else batch]
            there = baseline is not None and baseline >= first
            request = MeasureRequest(
                chain,
                inputs,
                tuple(part),
                extents,
                together,
                baseline - first if there and baseline is not None else None,
                deadline if math.isfinite(deadline) else None,
            )
            results += self._asked(request, len(part), deadline)
        return results

    def _asked(self, request: MeasureRequest, count: int, deadline: float) -> list[Measured]:
        """The answers to one request; fewer than `count` where the child ends before."""
        answers: list[Measured] = []
        limit = self._most(request.chain)
        for answer in self._child.ask(request.to_json(), count, limit, deadline):
            answers.append(
                failure(answer) if isinstance(answer, str) else Measured.from_json(answer)
            )
            if answers[-1].fatal:
                self._child.stop()
                break
        return answers

    def _most(self, chain: Chain) -> float:
        """The longest that one program may take, in seconds."""
        return self.limit + flops(chain) / self.backend.slowest


def _inputs(
    chain: Chain, seed: int, together: bool, offsets: Mapping[str, float], varied: bool
) -> Inputs:
    most = WHOLE if together else SAMPLED
    return Inputs(seed, tolerance(chain), most, dict(offsets), varied)


def offsets(chain: Chain) -> dict[str, float]:
    """The offsets, by name, of the inputs from which a shift is hoisted (algebra.hoist)."""

    def offset(name: str) -> float:
        return min(OFFSETS.get(t, 1e4) for t in (chain.tensor(name).dtype, chain.precision))

    return {n: offset(n) for n in shifted(chain)}


def tolerance(chain: Chain) -> float:
    """The norm-wise relative error that a check allows, by the types that a chain stores or casts
    to."""
    stored = [chain.tensor(n).dtype for n in (*chain.inputs, *chain.outputs)]
    casts = [e.dtype for o in chain.operators for e in walk(o.body) if isinstance(e, Cast)]
    return max(TOLERANCE.get(dtype, 1e-5) for dtype in (*stored, *casts, chain.precision))


def surest(timed: Sequence[tuple[T, Measured]]) -> tuple[T, Measured]:
    """The fastest of several programs. Where they were timed interleaved, its conditions say how
    sure that is (mcfuser.measure.rounds.comparison)."""
    if all(r.times and _interleaved(r) for _, r in timed):
        times = [r.times for _, r in timed]
        which = fastest(times)
        name, result = timed[which]
        return name, replace(result, conditions={**result.conditions, **comparison(times, which)})
    return min(timed, key=lambda pair: pair[1].seconds or math.inf)


def interleaved(results: Sequence[Measured]) -> Interleaved:
    """The times of programs that were measured together. There are no rounds where fewer than two
    of them are right."""
    seconds = tuple(m.seconds or math.inf for m in results)
    right = [m for m in results if m.seconds]
    if len(right) < 2 or not all(map(_interleaved, right)):
        return Interleaved(seconds)
    return Interleaved(seconds, tuple(m.times for m in results), right[0].conditions)


def _interleaved(result: Measured) -> bool:
    programs: Any = result.conditions.get("in_turns", 1)
    return bool(programs > 1)
