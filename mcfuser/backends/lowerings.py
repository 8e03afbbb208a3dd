"""What a candidate may ask of its compiler, by number for Triton; which of it is worth a look."""

from __future__ import annotations

from functools import partial

import numpy as np

from mcfuser.codegen import tensorir
from mcfuser.codegen.triton import Lowering
from mcfuser.device import Device
from mcfuser.lowering.triton.hopper.feasible import divisible, mapped
from mcfuser.lowering.triton.instructions import HOPPER
from mcfuser.lowering.triton.products import defers
from mcfuser.model import fitted
from mcfuser.model.worth import worth
from mcfuser.space.candidates import Candidates, Choose, candidates
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space

_ALIKE = tuple(
    Lowering(warps, stages, combine, tma)
    for combine in ("kernel", "last")
    for tma in (False, True)
    for warps in (1, 2, 4, 8)
    for stages in (1, 2, 3, 4)
)
ALIKE = len(_ALIKE)
"""Lowerings before that have warps that all do the same."""
LOWERINGS = _ALIKE + tuple(Lowering(4, stages, "kernel", True, True) for stages in (2, 3, 4))
WARPS = np.asarray([2 * x.warps if x.groups else x.warps for x in LOWERINGS])
"""Warps that compute, as the model takes them; groups are two at least."""
STAGES = np.asarray([x.stages for x in LOWERINGS])
TMA = np.asarray([x.tma for x in LOWERINGS])
KINDS = ALIKE // 2
"""Those before that have a kernel to combine parts."""
PLAIN = KINDS // 2
"""Those before that, besides, load through pointers alone."""


def cpu_lowerings(device: Device) -> tuple[tensorir.Lowering, ...]:
    """Register micro-tiles that fill the accumulators without spilling: 12 to 24 of the 32
    registers of AVX-512, at most 12 of 16 on narrower ones."""
    shapes = ((8, 2), (6, 4), (8, 3)) if device.bits == 512 else ((6, 2), (4, 3))
    return tuple(tensorir.Lowering(r, v, max(device.bits, 128) // 32) for r, v in shapes)


def declared(device: Device) -> str:
    """The text that says which lowerings a candidate for a device may have."""
    return repr(LOWERINGS if device.kind == "cuda" else cpu_lowerings(device))


def every(found: Space, device: Device, groups: bool = True) -> Candidates:
    """The candidates of a pruned space for a GPU, under every lowering worth a look, those whose
    warps have work of their own among them if wanted."""
    choose: Choose = partial(_choose, device, groups)
    return candidates(found, choose)


def _choose(device: Device, groups: bool, plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
    which = np.repeat(np.arange(len(tiles)), PLAIN)
    lowerings = np.tile(np.arange(PLAIN), len(tiles))
    kept = worth(plan, tiles[which], WARPS[lowerings], STAGES[lowerings], device)
    which, lowerings = which[kept], lowerings[kept]
    if device.arch == HOPPER:
        maps = mapped(plan, tiles)[which]
        which = np.concatenate([which, which[maps]])
        lowerings = np.concatenate([lowerings, lowerings[maps] + PLAIN])
    if plan.split is not None:
        return np.tile(which, 2), np.concatenate([lowerings, lowerings + KINDS])
    if groups and device.arch == HOPPER:
        more, others = _grouped(device, plan, tiles)
        return np.concatenate([which, more]), np.concatenate([lowerings, others])
    return which, lowerings


def _grouped(device: Device, plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
    """The same, of lowerings with groups."""
    at = np.flatnonzero(divisible(plan, tiles))
    which = np.repeat(at, len(LOWERINGS) - ALIKE)
    lowerings = np.tile(np.arange(ALIKE, len(LOWERINGS)), len(at))
    kept = worth(plan, tiles[which], WARPS[lowerings], STAGES[lowerings], device)
    return which[kept], lowerings[kept]


def predict(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> Floats:
    """Seconds by the fitted model."""
    return fitted.predicted(*counted(device, plan, tiles, lowerings), fitted.costs(device))


def counted(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> tuple[Floats, Floats]:
    """What the fitted model counts of candidates, and what memory takes (fitted.counted). Groups
    keep a pace of their own where a product is late."""
    events, far = np.zeros((len(tiles), len(fitted.NAMES))), np.zeros(len(tiles))
    late = (lowerings >= ALIKE) & defers(plan)
    for which, groups in ((~late, False), (late, True)):
        if which.any():
            some = lowerings[which]
            last, maps = (some >= KINDS) & (some < ALIKE), TMA[some]
            made = fitted.lowered(plan, tiles[which], WARPS[some], STAGES[some], last, device, maps)
            events[which], far[which] = fitted.counted(made, device, groups)
    return events, far
