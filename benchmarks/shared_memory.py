"""Estimates of shared memory against what Triton allocates (MCFuser Fig. 10); no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import from_text
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.device import Device
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model import fitted
from mcfuser.model.feasible import HELD
from mcfuser.space.candidates import Candidate, Candidates, candidates
from mcfuser.space.knobs import Columns, KnobTable, knob
from mcfuser.space.plan import Ints, Plan, footprint
from mcfuser.space.prune import SLACK, Space, distinct, prune, space
from mcfuser.space.statement import Illegal


@dataclass(frozen=True, slots=True)
class Sized:
    """A candidate's shared memory, bytes: by equation (1), as estimated, and as allocated."""

    workload: str
    equation: int
    estimate: int
    allocated: int


@dataclass(frozen=True, slots=True)
class Sides:
    """How many candidates an estimate puts on the right side of the limit. `kept` are those that
    it lets pass and that do not fit, `lost` those that it drops and that would fit."""

    name: str
    count: int
    right: float
    kept: float
    lost: float


def draw(
    workloads: Mapping[str, str], device: Device, limit: int, seed: int
) -> list[tuple[str, Candidates, Candidate]]:
    """At most `limit` candidates in all, as many of each workload, up to WIDE times what rule 4
    lets pass; none of those whose registers are certain to spill, which take a compiler minutes."""
    rng = np.random.default_rng(seed)
    found = []
    for name, words in workloads.items():
        every = _candidates(space(from_text(words, "float16")), device)
        for i in rng.permutation(len(every))[: max(1, limit // len(workloads))]:
            found.append((name, every, every.candidate(i)))
    return found[:limit]


def _candidates(found: Space, device: Device) -> Candidates:
    tabled, _ = prune(found, replace(device, fast=WIDE * device.fast))

    def enough(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> NDArray[np.bool_]:
        return np.asarray(_lowered(plan, tiles, settings, device).registers <= HELD)

    return candidates(distinct(tabled), KnobTable(Plain, device), enough)


@dataclass(frozen=True, slots=True)
class Plain:
    """Warps and stages, without anything that applies in places only."""

    warps: int = knob(4, (1, 2, 4, 8))
    stages: int = knob(2, (1, 2, 3, 4))


def _lowered(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> TritonCandidates:
    none = np.zeros(len(tiles), bool)
    return fitted.lowered(plan, tiles, settings["warps"], settings["stages"], none, device)


WIDE = 4
"""Candidates are drawn up to so many times the limit: beyond, nothing is in doubt."""


def measure(
    chosen: list[tuple[str, Candidates, Candidate]], device: Device, compilers: Compilers,
    tell: Callable[[int, int], None],
) -> tuple[list[Sized], int]:  # fmt: skip
    """The sizes of candidates that compile, and how many do not."""
    sources, known, failed = [], [], 0
    for name, every, candidate in chosen:
        plan, tiles = every.plan(candidate)
        try:
            settings = every.settings(candidate)
            lowering = TritonKnobs(settings.warps, settings.stages)
            source = triton.generate(plan.schedule(tiles), "kernel", lowering)
        except Illegal:
            failed += 1
            continue
        sources.append(source)
        known.append((name, every, candidate))
    found = []
    for done, (i, binary) in enumerate(compilers.compile(sources, device.arch), 1):
        tell(done, len(sources))
        if isinstance(binary, Illegal):
            failed += 1
        else:
            found.append(_sized(*known[i], binary, device))
    return found, failed


def _sized(
    name: str, every: Candidates, candidate: Candidate, binary: Binary, device: Device
) -> Sized:
    plan, _ = every.plan(candidate)
    tiles = np.asarray([candidate[1:-1]], np.int64)
    settings = every.table.columns(np.asarray([candidate[-1]]))
    made = _lowered(plan, tiles, settings, device)
    equation, estimate = footprint(plan, tiles)[0], made.shared[0]
    return Sized(name, int(equation), int(estimate), binary.shared)


def sides(sized: list[Sized], device: Device) -> list[Sides]:
    """Equation (1) with the slack of rule 4, and the estimate, both against the limit."""
    fits = np.asarray([s.allocated <= device.fast for s in sized])
    equation = np.asarray([s.equation <= SLACK * device.fast for s in sized])
    estimate = np.asarray([s.estimate <= device.fast for s in sized])
    return [_sides("equation (1)", equation, fits), _sides("estimate", estimate, fits)]


def _sides(name: str, passes: NDArray[np.bool_], fits: NDArray[np.bool_]) -> Sides:
    return Sides(
        name, len(fits), float(np.mean(passes == fits)), float(np.mean(passes & ~fits)),
        float(np.mean(~passes & fits)),
    )  # fmt: skip
