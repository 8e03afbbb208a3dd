"""What a candidate may ask of Triton's compiler, by number, and which of it is worth a look."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mcfuser.candidates import Candidates, Choose, candidates
from mcfuser.chain import product
from mcfuser.codegen.triton import Lowering
from mcfuser.codegen.triton.tensor_map import mappable
from mcfuser.codegen.triton.width import widths
from mcfuser.device import Device
from mcfuser.model import fitted
from mcfuser.model.resources import HOPPER
from mcfuser.model.worth import worth
from mcfuser.space.plan import Floats, Ints, Plan, sizes_of
from mcfuser.space.prune import Space
from mcfuser.space.statement import Compute, Load, statements

LOWERINGS = tuple(
    Lowering(warps, stages, combine, tma)
    for combine in ("kernel", "last")
    for tma in (False, True)
    for warps in (1, 2, 4, 8)
    for stages in (1, 2, 3, 4)
)
WARPS = np.asarray([x.warps for x in LOWERINGS])
STAGES = np.asarray([x.stages for x in LOWERINGS])
TMA = np.asarray([x.tma for x in LOWERINGS])
KINDS = len(LOWERINGS) // 2
"""Those before that have a kernel to combine parts."""
PLAIN = KINDS // 2
"""Those before that, besides, load through pointers alone."""


def every(found: Space, device: Device) -> Candidates:
    """The candidates of a pruned space for a GPU, under every lowering worth a look."""
    choose: Choose = partial(_choose, device)
    return candidates(found, choose)


def _choose(device: Device, plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
    which = np.repeat(np.arange(len(tiles)), PLAIN)
    lowerings = np.tile(np.arange(PLAIN), len(tiles))
    kept = worth(plan, tiles[which], WARPS[lowerings], STAGES[lowerings], device)
    which, lowerings = which[kept], lowerings[kept]
    if device.arch == HOPPER:
        maps = mapped(plan, tiles)[which]
        which = np.concatenate([which, which[maps]])
        lowerings = np.concatenate([lowerings, lowerings[maps] + PLAIN])
    if plan.split is None:
        return which, lowerings
    return np.tile(which, 2), np.concatenate([lowerings, lowerings + KINDS])


def mapped(plan: Plan, tiles: Ints) -> NDArray[np.bool_]:
    """Where some operand of a product can come through a tensor map."""
    every = [s for s, _ in statements(plan.placed[1])]
    chain, sizes = plan.program.chain, sizes_of(plan, tiles)
    bodies = (replace(s.operator, body=s.body) for s in every if isinstance(s, Compute))
    roles = [r for o in bodies if (r := product(o)) and r.rows and r.columns and r.depth]
    operands = {read.tensor for r in roles for read in (r.left, r.right)}
    width = widths(chain, roles, sizes.of)
    found = np.zeros(len(tiles), bool)
    for s in every:
        if isinstance(s, Load) and s.buffer in operands:
            found |= mappable(chain, s.read, sizes.of, width.__getitem__)
    return found


def predict(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> Floats:
    """Seconds by the fitted model."""
    warps, stages = WARPS[lowerings], STAGES[lowerings]
    last, maps = lowerings >= KINDS, TMA[lowerings]
    made = fitted.lowered(plan, tiles, warps, stages, last, device, maps)
    return fitted.estimate(made, device)
