"""What a candidate may ask of Triton's compiler, by number, and which of it is worth a look."""

from __future__ import annotations

from functools import partial

import numpy as np

from mcfuser.candidates import Candidates, Choose, candidates
from mcfuser.codegen.triton import Lowering
from mcfuser.device import Device
from mcfuser.model import fitted
from mcfuser.model.resources import worth
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.prune import Space

LOWERINGS = tuple(
    Lowering(warps, stages, combine)
    for combine in ("kernel", "last")
    for warps in (1, 2, 4, 8)
    for stages in (1, 2, 3, 4)
)
WARPS = np.asarray([x.warps for x in LOWERINGS])
STAGES = np.asarray([x.stages for x in LOWERINGS])
KINDS = len(LOWERINGS) // 2
"""Those before that have a kernel to combine parts."""


def every(found: Space, device: Device) -> Candidates:
    """The candidates of a pruned space for a GPU, under every lowering worth a look."""
    choose: Choose = partial(_choose, device)
    return candidates(found, choose)


def _choose(device: Device, plan: Plan, tiles: Ints) -> tuple[Ints, Ints]:
    kinds = len(LOWERINGS) if plan.split is not None else KINDS
    which = np.repeat(np.arange(len(tiles)), KINDS)
    lowerings = np.tile(np.arange(KINDS), len(tiles))
    kept = worth(plan, tiles[which], WARPS[lowerings], STAGES[lowerings], device)
    which, lowerings = which[kept], lowerings[kept]
    if kinds == KINDS:
        return which, lowerings
    return np.tile(which, 2), np.concatenate([lowerings, lowerings + KINDS])


def predict(device: Device, plan: Plan, tiles: Ints, lowerings: Ints) -> Floats:
    """Seconds by the fitted model."""
    warps, stages = WARPS[lowerings], STAGES[lowerings]
    made = fitted.lowered(plan, tiles, warps, stages, lowerings >= KINDS, device)
    return fitted.estimate(made, device)
