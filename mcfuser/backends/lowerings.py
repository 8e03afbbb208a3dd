"""What a candidate may ask of its compiler, by number for Triton; which of it is worth a look."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import product
from mcfuser.codegen import tensorir
from mcfuser.codegen.triton import Lowering, generate
from mcfuser.device import Device
from mcfuser.lowering.triton.hopper.groups import COUNTS
from mcfuser.lowering.triton.hopper.tensor_map import mappable
from mcfuser.lowering.triton.instructions import HOPPER, ROWS
from mcfuser.lowering.triton.width import widths
from mcfuser.model import fitted
from mcfuser.model.worth import worth
from mcfuser.space.candidates import Candidates, Choose, candidates
from mcfuser.space.plan import Floats, Ints, Plan, sizes_of
from mcfuser.space.prune import Space
from mcfuser.space.statement import Compute, Illegal, Load, statements

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
        some, whole = mapped(plan, tiles)
        maps = some[which]
        which = np.concatenate([which, which[maps]])
        lowerings = np.concatenate([lowerings, lowerings[maps] + PLAIN])
    if plan.split is not None:
        return np.tile(which, 2), np.concatenate([lowerings, lowerings + KINDS])
    if groups and device.arch == HOPPER:
        more, others = _grouped(device, plan, tiles, whole)
        return np.concatenate([which, more]), np.concatenate([lowerings, others])
    return which, lowerings


def _grouped(device: Device, plan: Plan, tiles: Ints, maps: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """The same, of lowerings with groups: where tiles have their rows, and the plan's statements
    divide so, which one candidate of each number of rows shows; a few of the others want more
    registers than a thread has, and say so when they are generated."""
    fits = np.zeros(len(tiles), bool)
    chain = plan.program.chain
    rows = {a for o in chain.operators if (roles := product(o)) for a in roles.rows}
    for a in sorted(rows & {*plan.axes}):
        extents = tiles[:, plan.axes.index(a)]
        for count in COUNTS:
            having = np.flatnonzero((extents == count * ROWS) & maps)
            if len(having) and _divides(plan, tiles[having[0]]):
                fits[having] = True
    at = np.flatnonzero(fits)
    which = np.repeat(at, len(LOWERINGS) - ALIKE)
    lowerings = np.tile(np.arange(ALIKE, len(LOWERINGS)), len(at))
    kept = worth(plan, tiles[which], WARPS[lowerings], STAGES[lowerings], device)
    return which[kept], lowerings[kept]


def _divides(plan: Plan, tile: Ints) -> bool:
    schedule = plan.schedule(dict(zip(plan.axes, tile.tolist(), strict=True)))
    try:
        generate(schedule, "kernel", LOWERINGS[ALIKE])
    except Illegal:
        return False
    return True


def mapped(plan: Plan, tiles: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where some operand of a product can come through a tensor map, and where all that are loaded
    can."""
    every = [s for s, _ in statements(plan.placed[1])]
    chain, sizes = plan.program.chain, sizes_of(plan, tiles)
    bodies = (replace(s.operator, body=s.body) for s in every if isinstance(s, Compute))
    roles = [r for o in bodies if (r := product(o)) and r.rows and r.columns and r.depth]
    operands = {read.tensor for r in roles for read in (r.left, r.right)}
    width = widths(chain, roles, sizes.of)
    some, whole = np.zeros(len(tiles), bool), np.ones(len(tiles), bool)
    for s in every:
        if isinstance(s, Load) and s.buffer in operands:
            can = mappable(chain, s.read, sizes.of, width.__getitem__)
            some, whole = some | can, whole & can
    return some, whole


def predict(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> Floats:
    """Seconds by the fitted model."""
    return fitted.predicted(*counted(device, plan, tiles, lowerings), fitted.costs(device))


def counted(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> tuple[Floats, Floats]:
    """What the fitted model counts of candidates, and what memory takes (fitted.counted). Groups
    keep a pace of their own where a product is late."""
    events, far = np.zeros((len(tiles), len(fitted.NAMES))), np.zeros(len(tiles))
    late = (lowerings >= ALIKE) & _late(plan)
    for which, groups in ((~late, False), (late, True)):
        if which.any():
            some = lowerings[which]
            last, maps = (some >= KINDS) & (some < ALIKE), TMA[some]
            made = fitted.lowered(plan, tiles[which], WARPS[some], STAGES[some], last, device, maps)
            events[which], far[which] = fitted.counted(made, device, groups)
    return events, far


def _late(plan: Plan) -> bool:
    """Some product takes what the chain computes, and so is issued late
    (codegen.triton.hopper.groups)."""
    chain = plan.program.chain
    lefts = [roles.left.tensor for o in chain.operators if (roles := product(o))]
    return any(t not in chain.inputs for t in lefts)
