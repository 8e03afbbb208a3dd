"""Measuring in a process that may die: what a program computes is checked, then it is timed.

The worker is one child process that serves many requests, one JSON line each. A program that
crashes, hangs or runs out of memory costs itself and a new child, nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from mcfuser.algebra.hoist import shifted
from mcfuser.chain import Chain, fixed, flops, run_time, to_json
from mcfuser.codegen.tensorir import Source, shaped
from mcfuser.expr import Cast, walk
from mcfuser.measure.rounds import Turns, fastest, told
from mcfuser.process.child import NO_TIME, Child

T = TypeVar("T")

TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest norm-wise relative error against float64, by the type that the chain stores."""

FAR: Mapping[str, float] = {"float32": 1e4, "float16": 1e2, "bfloat16": 1e1}
"""How far from zero, in deviations, a hoisted shift must still be right; by the type that holds the
data, which has to keep some digits of them."""

SLOWEST = 2e9
"""Flops per second that the float64 reference and all timed runs of a program reach at least."""


@dataclass(frozen=True)
class Kernel:
    """A generated function and the chain that it computes."""

    chain: Chain
    source: Source


Program = Sequence[Kernel]
"""Kernels run in order; they pass tensors by name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds a call (median) and the error found; or the reason why there are none.

    `conditions` tell the state of the device while it was timed. `unusable` says that the device,
    not the program, is why there are none.
    """

    seconds: float | None
    error: float | None
    failed: str | None = None
    times: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    unusable: bool = False


def offsets(chain: Chain) -> dict[str, float]:
    """Where the inputs of which a shift is hoisted lie when such a program is checked."""
    return {n: FAR.get(chain.tensor(n).dtype, 1e4) for n in shifted(chain)}


def tolerance(chain: Chain) -> float:
    """The error that a check allows, by what the chain stores, and what it casts to on the way."""
    stored = [chain.tensor(n).dtype for n in (*chain.inputs, *chain.outputs)]
    casts = [e.dtype for o in chain.operators for e in walk(o.body) if isinstance(e, Cast)]
    return max(TOLERANCE.get(dtype, 1e-5) for dtype in (*stored, *casts))


BATCH = 16
"""Programs of one request: a child builds all of them, within `limit`, before it times any."""


class Worker:
    """A child process that measures on the CPU; use it as a context manager.

    `limit` is the longest that one program may take, seconds, besides what its flops take at
    `SLOWEST`; `memory` bounds the child's address space, bytes.
    """

    def __init__(self, threads: int, limit: float = 20.0, memory: int = 16 << 30) -> None:
        self.limit = limit
        counts = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        self._child = Child("mcfuser.backends.cpu.runner", [str(memory)], counts)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def warm(self) -> None:
        """Starts the child, which takes a second to import what it needs, without waiting."""
        if not self._child.alive:
            self._child.start()

    def stop(self) -> None:
        self._child.stop()

    def measure(
        self,
        chain: Chain,
        programs: Sequence[Program],
        seed: int,
        together: bool = False,
        deadline: float = math.inf,
        offsets: Mapping[str, float] = MappingProxyType({}),
        varied: bool = False,
        extents: Mapping[str, int] = MappingProxyType({}),
        baseline: int | None = None,
        batch: int = BATCH,
    ) -> list[Measured]:
        """Checks and times programs that compute `chain`, on inputs drawn from `seed`: normal ones
        of deviation one, around zero or, by name, around `offsets`; with `varied`, of different
        signs and scales (mcfuser.measure.inputs).

        Extents that are known at run time only are those given, or at their upper bounds.
        `together` times them in turns, for a comparison that drift does not touch, until it is sure
        which is the fastest; with a `baseline`, whether one is faster than that
        (mcfuser.measure.rounds). A child builds `batch` programs before it times the first of
        them. What is not done at the `deadline` (time.monotonic) fails with NO_TIME.
        """
        results: list[Measured] = []
        while len(results) < len(programs):
            if time.monotonic() >= deadline:
                results += [Measured(None, None, NO_TIME)] * (len(programs) - len(results))
                break
            part = programs[len(results) :][: len(programs) if together else batch]
            encoded = [[_kernel(k, extents) for k in p] for p in part]
            request = request_of(at(chain, extents), encoded, seed, together, offsets, varied)
            request |= lasting(baseline, len(results), deadline)
            limit = self.limit + flops(chain) / SLOWEST
            self.warm()
            answers = self._child.ask(request, len(part), limit, deadline)
            results += [measured(answer) for answer in answers]
        return results


def surest(timed: Sequence[tuple[T, Measured]]) -> tuple[T, Measured]:
    """The fastest of programs that were measured together; its conditions tell how sure that is.

    Where they were not timed in turns, the one with the shortest time.
    """
    if all(r.times and r.conditions.get("in_turns", 1) > 1 for _, r in timed):
        times = [r.times for _, r in timed]
        which = fastest(times)
        name, result = timed[which]
        return name, replace(result, conditions={**result.conditions, **told(times, which)})
    return min(timed, key=lambda pair: pair[1].seconds or math.inf)


def turns(found: Sequence[Measured]) -> Turns:
    """What was measured of programs together, some of which may have failed."""
    seconds = tuple(m.seconds or math.inf for m in found)
    right = [m for m in found if m.seconds]
    if len(right) < 2 or not all(m.conditions.get("in_turns", 1) > 1 for m in right):
        return Turns(seconds)
    return Turns(seconds, tuple(m.times for m in found), right[0].conditions)


def lasting(baseline: int | None, before: int, deadline: float) -> dict[str, Any]:
    """What tells a child how long to time programs in turns; so many of them were asked before."""
    there = baseline is not None and baseline >= before
    return {
        "baseline": baseline - before if there and baseline is not None else None,
        "until": deadline if math.isfinite(deadline) else None,
    }


def measured(answer: Mapping[str, Any] | str) -> Measured:
    """What a child answered, or why it did not."""
    if isinstance(answer, str):
        return Measured(None, None, answer)
    return Measured(
        answer["seconds"], answer["error"], answer["failed"], tuple(answer["times"]),
        answer.get("conditions", {}), answer.get("unusable", False),
    )  # fmt: skip


def request_of(
    chain: Chain, programs: Sequence[Sequence[Mapping[str, Any]]], seed: int, together: bool,
    offsets: Mapping[str, float], varied: bool,
) -> dict[str, Any]:  # fmt: skip
    """What a measuring child is asked, of programs as it reads them."""
    return {
        "offsets": dict(offsets),
        "chain": to_json(chain),
        "seed": seed,
        "tolerance": tolerance(chain),
        "together": together,
        "varied": varied,
        "programs": programs,
    }


def at(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain with these extents, and the upper bound of every other one."""
    found = {a: extents.get(a, bounds.high) for a, bounds in run_time(chain).items()}
    return fixed(chain, found) if found else chain


def smaller(chain: Chain) -> tuple[Mapping[str, int], ...]:
    """Extents at which a kernel is checked besides those that it is timed at: the least, and some
    between."""
    bounds = run_time(chain)
    if not bounds:
        return ()
    least = {a: b.low for a, b in bounds.items()}
    between = {a: (b.low + b.high + 1) // 2 for a, b in bounds.items()}
    return (least, between) if least != between else (least,)


def _kernel(k: Kernel, extents: Mapping[str, int]) -> dict[str, Any]:
    packed = {n: [p.depth, p.columns, p.width] for n, p in k.source.packed}
    there = at(k.chain, extents)
    return {"chain": to_json(there), "text": k.source.text, "name": k.source.name,
            "packed": packed, "scalars": [there.size(a) for a in k.source.scalars],
            "shaped": shaped(k.chain)}  # fmt: skip
