"""Measuring in a process that may die: what a program computes is checked, then it is timed.

The worker is one child process that serves many requests (mcfuser.measure.child). A program that
crashes, hangs or runs out of memory costs itself and a new child, nothing else.
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

T = TypeVar("T")

TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest norm-wise relative error against float64, by the type that the chain stores."""

OFFSETS: Mapping[str, float] = {"float32": 1e4, "float16": 1e2, "bfloat16": 1e1}
"""How far from zero, in deviations, a hoisted shift must still be right; by the type that holds the
data, which has to keep some digits of them."""

SAMPLED = 2e8
"""Flops of the reference that candidates are checked against: some tenths of a second."""
WHOLE = 4e9
"""The same for finalists: whole tensors, but for the longest sequences."""

BATCH = 16
"""Programs of one request: a child that compiles makes all of them before it times any."""
START = 30.0
"""Seconds that the child may take until it has the device."""


class Worker:
    """A child process that measures on the device at hand, and a builder of what it measures; use
    it as a context manager.

    `limit` is the longest that one program may take, seconds, besides what its flops take
    (Backend.slowest); the back end's own if None.
    """

    def __init__(
        self, backend: Backend, device: Device, limit: float | None = None,
        cores: int | None = None,
    ) -> None:  # fmt: skip
        self.backend, self.device = backend, device
        self.limit = backend.limit if limit is None else limit
        self.builder = backend.builder(device, cores)
        arguments = [backend.runner, device.name, str(backend.memory or 0)]
        self._child = Child("mcfuser.measure.child", arguments, backend.environment(device))
        self._refused: str | None = None
        self._greeted = False

    def __enter__(self) -> Worker:
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
        self.builder.stop()

    def warm(self) -> None:
        """Starts the child, which takes a second to open the device, and the builder; does not
        wait."""
        if self._refused is None and not self._child.alive:
            self._refused = self.backend.missing()
            if self._refused is None:
                self._child.start()
                self._greeted = False
                self.builder.warm()

    def refused(self, deadline: float = math.inf) -> str | None:
        """Why this machine cannot measure for the device, in one sentence; None where it can."""
        self.warm()
        if self._refused is None and not self._greeted:
            greeting = self._child.line(START, deadline)
            if greeting == NO_TIME:  # there may be for the next chain
                return "no time was left to open the device"
            if isinstance(greeting, str):
                self._refused = f"{self.device.name} could not be opened: {greeting}"
            else:
                self._refused = greeting["failed"]
            self._greeted = True
        return self._refused

    def announce(
        self, chain: Chain, seed: int, together: bool, offsets: Mapping[str, float],
        varied: bool = False,
    ) -> None:  # fmt: skip
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
        """Checks and times programs that compute `chain`, on inputs drawn from `seed` (Inputs).

        Extents that are known at run time only are those given, or at their upper bounds.
        `together` checks whole tensors and times the programs in turns, for a comparison that
        drift does not touch, until it is sure which is the fastest; with a `baseline`, whether one
        is faster than that (mcfuser.measure.rounds). A child that compiles makes `batch` programs
        before it times the first of them. What is not done at the `deadline` (time.monotonic)
        fails with NO_TIME.
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
                chain, inputs, tuple(part), extents, together,
                baseline - first if there and baseline is not None else None,
                deadline if math.isfinite(deadline) else None,
            )  # fmt: skip
            results += self._asked(request, len(part), deadline)
        return results

    def _asked(self, request: MeasureRequest, count: int, deadline: float) -> list[Measured]:
        """As many answers as there are before the child dies."""
        found: list[Measured] = []
        limit = self._most(request.chain)
        for answer in self._child.ask(request.to_json(), count, limit, deadline):
            found.append(failure(answer) if isinstance(answer, str) else Measured.from_json(answer))
            if found[-1].fatal:
                self._child.stop()
                break
        return found

    def _most(self, chain: Chain) -> float:
        """Seconds that one program may take."""
        return self.limit + flops(chain) / self.backend.slowest


def _inputs(
    chain: Chain, seed: int, together: bool, offsets: Mapping[str, float], varied: bool
) -> Inputs:
    most = WHOLE if together else SAMPLED
    return Inputs(seed, tolerance(chain), most, dict(offsets), varied)


def offsets(chain: Chain) -> dict[str, float]:
    """Where the inputs of which a shift is hoisted lie when such a program is checked."""
    return {n: OFFSETS.get(chain.tensor(n).dtype, 1e4) for n in shifted(chain)}


def tolerance(chain: Chain) -> float:
    """The error that a check allows, by what the chain stores, and what it casts to on the way."""
    stored = [chain.tensor(n).dtype for n in (*chain.inputs, *chain.outputs)]
    casts = [e.dtype for o in chain.operators for e in walk(o.body) if isinstance(e, Cast)]
    return max(TOLERANCE.get(dtype, 1e-5) for dtype in (*stored, *casts))


def surest(timed: Sequence[tuple[T, Measured]]) -> tuple[T, Measured]:
    """The fastest of programs that were measured together; its conditions tell how sure that is.

    Where they were not timed in turns, the one with the shortest time.
    """
    if all(r.times and _in_turns(r) for _, r in timed):
        times = [r.times for _, r in timed]
        which = fastest(times)
        name, result = timed[which]
        return name, replace(result, conditions={**result.conditions, **comparison(times, which)})
    return min(timed, key=lambda pair: pair[1].seconds or math.inf)


def interleaved(found: Sequence[Measured]) -> Interleaved:
    """What was measured of programs together, some of which may have failed."""
    seconds = tuple(m.seconds or math.inf for m in found)
    right = [m for m in found if m.seconds]
    if len(right) < 2 or not all(map(_in_turns, right)):
        return Interleaved(seconds)
    return Interleaved(seconds, tuple(m.times for m in found), right[0].conditions)


def _in_turns(result: Measured) -> bool:
    told_of: Any = result.conditions.get("in_turns", 1)
    return bool(told_of > 1)
