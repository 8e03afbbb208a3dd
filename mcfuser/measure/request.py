"""The requests to the process that measures, and its answers: one line of JSON each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mcfuser.backend import Kernel
from mcfuser.chain import Chain, fixed, from_json, run_time, to_json

KernelSequence = Sequence[Kernel]
"""Kernels that run in order and pass tensors to each other by name. Together they compute a chain:
a program, as the process that measures calls it."""


COMPILED = "compiled"
"""The condition that has the seconds of a core in which a program's kernels were compiled."""


@dataclass(frozen=True)
class Inputs:
    """The inputs that programs are checked on, and the error that is allowed.

    They are drawn from `seed`: normally distributed with deviation one, around zero or around
    `offsets` (by name); with different signs and scales if `varied` (mcfuser.measure.inputs). A
    check allows norm-wise relative errors of `tolerance`. The reference computes as many positions
    as `flops` allow.
    """

    seed: int
    tolerance: float
    flops: float
    offsets: Mapping[str, float] = field(default_factory=dict)
    varied: bool = False


@dataclass(frozen=True)
class MeasureRequest:
    """Programs that compute a chain, to be checked and timed on the same inputs.

    `extents` (by axis) are those that are known only at run time; others are at their upper bounds.
    If `together`, the programs are timed interleaved, until it is sure which one is the fastest or,
    with a `baseline` (a number of a program), whether one is faster than that. No round begins
    after `until` (time.monotonic). A request that is sent `ahead` has no programs and is not
    answered: its test case is made in advance.
    """

    chain: Chain
    inputs: Inputs
    programs: tuple[KernelSequence, ...] = ()
    extents: Mapping[str, int] = field(default_factory=dict)
    together: bool = False
    baseline: int | None = None
    until: float | None = None
    ahead: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": to_json(self.chain),
            "inputs": asdict(self.inputs),
            "programs": [[kernel.to_json() for kernel in p] for p in self.programs],
            "extents": dict(self.extents),
            "together": self.together,
            "baseline": self.baseline,
            "until": self.until,
            "ahead": self.ahead,
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MeasureRequest:
        """Raises KeyError, TypeError or ValueError where the document is of another form."""
        programs = tuple(tuple(map(Kernel.from_json, p)) for p in document["programs"])
        return MeasureRequest(
            from_json(document["chain"]),
            Inputs(**document["inputs"]),
            programs,
            document["extents"],
            document["together"],
            document["baseline"],
            document["until"],
            document["ahead"],
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of a program, in seconds a call (median), and its error; or why it `failed`.

    `times` are the seconds of every round, `conditions` the state of the device meanwhile.
    `unusable`: the program failed because of the device. `fatal`: the process that measures ends
    with this answer, because the device cannot be used any more. `wrong`: it ran, and computed
    other numbers than the chain means.
    """

    seconds: float | None
    error: float | None
    failed: str | None = None
    times: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    unusable: bool = False
    fatal: bool = False
    wrong: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Measured:
        """Raises KeyError or TypeError where the document is of another form."""
        return Measured(**{**document, "times": tuple(document["times"])})


def failure(why: str) -> Measured:
    """The answer for a program that failed."""
    return Measured(None, None, why)


def at_extents(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain with these run-time extents (by axis), others at their upper bounds."""
    every = {a: extents.get(a, bounds.high) for a, bounds in run_time(chain).items()}
    return fixed(chain, every) if every else chain


def smaller_extents(chain: Chain) -> tuple[Mapping[str, int], ...]:
    """The run-time extents at which a kernel is checked besides those at which it is timed: the
    smallest ones, and those in the middle. There are none for a chain of fixed extents."""
    bounds = run_time(chain)
    if not bounds:
        return ()
    least = {a: b.low for a, b in bounds.items()}
    between = {a: (b.low + b.high + 1) // 2 for a, b in bounds.items()}
    return (least, between) if least != between else (least,)
