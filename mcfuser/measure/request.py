"""What the process that measures is asked, and what it answers: a JSON line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mcfuser.backend import Kernel
from mcfuser.chain import Chain, fixed, from_json, run_time, to_json

KernelSequence = Sequence[Kernel]
"""Kernels run in order; they pass tensors by name."""


@dataclass(frozen=True)
class Inputs:
    """The inputs that programs are checked on, and how far their outputs may be off.

    They are drawn from `seed`: normal ones of deviation one, around zero or, by name, around
    `offsets`; where `varied`, of different signs and scales (mcfuser.measure.inputs). A check
    allows norm-wise relative errors of `tolerance`. The reference computes at as many positions as
    `flops` allow.
    """

    seed: int
    tolerance: float
    flops: float
    offsets: Mapping[str, float] = field(default_factory=dict)
    varied: bool = False


@dataclass(frozen=True)
class MeasureRequest:
    """Programs that compute a chain, to be checked and timed on the same inputs.

    Extents that are known at run time only are `extents`. `together`: the programs are timed in
    turns, until it is sure which one is the fastest; with the number of a `baseline`, whether one
    is faster than that; no round begins after `until` (time.monotonic), if there is such a time.
    A request that is `ahead` of others is not answered: its inputs are made meanwhile.
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
            from_json(document["chain"]), Inputs(**document["inputs"]), programs,
            document["extents"], document["together"], document["baseline"], document["until"],
            document["ahead"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds a call (median) and the error found; or the reason why there are none.

    `conditions` tell the state of the device while the program was timed. `unusable` says that the
    device, not the program, is why there are none; `fatal`, that the process that measured ends.
    """

    seconds: float | None
    error: float | None
    failed: str | None = None
    times: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    unusable: bool = False
    fatal: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Measured:
        """Raises KeyError or TypeError where the document is of another form."""
        return Measured(**{**document, "times": tuple(document["times"])})


def failure(why: str) -> Measured:
    """A program that has no seconds."""
    return Measured(None, None, why)


def at_extents(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain with these extents, and the upper bound of every other one."""
    found = {a: extents.get(a, bounds.high) for a, bounds in run_time(chain).items()}
    return fixed(chain, found) if found else chain


def smaller_extents(chain: Chain) -> tuple[Mapping[str, int], ...]:
    """Extents at which a kernel is checked besides those that it is timed at: the least, and some
    between."""
    bounds = run_time(chain)
    if not bounds:
        return ()
    least = {a: b.low for a, b in bounds.items()}
    between = {a: (b.low + b.high + 1) // 2 for a, b in bounds.items()}
    return (least, between) if least != between else (least,)
