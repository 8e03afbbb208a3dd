"""Where tensor maps and warp groups make sense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import product
from mcfuser.codegen.triton import Lowering, generate
from mcfuser.codegen.triton.hopper.groups import COUNTS, ROWS
from mcfuser.codegen.triton.hopper.tensor_map import mappable
from mcfuser.codegen.triton.width import widths
from mcfuser.device import Device
from mcfuser.model.resources import HOPPER
from mcfuser.space.plan import Ints, Plan, sizes_of
from mcfuser.space.statement import Compute, Illegal, Load, statements


def maps_help(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    if device.arch != HOPPER:
        return np.zeros(len(tiles), bool)
    return mapped(plan, tiles)[0]


def divides(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    fits = np.zeros(len(tiles), bool)
    if device.arch != HOPPER or plan.split is not None:
        return fits
    maps = mapped(plan, tiles)[1]
    chain = plan.program.chain
    rows = {a for o in chain.operators if (roles := product(o)) for a in roles.rows}
    for a in sorted(rows & {*plan.axes}):
        extents = tiles[:, plan.axes.index(a)]
        for count in COUNTS:
            having = np.flatnonzero((extents == count * ROWS) & maps)
            if len(having) and _divides(plan, tiles[having[0]]):
                fits[having] = True
    return fits


def _divides(plan: Plan, tile: Ints) -> bool:
    schedule = plan.schedule(dict(zip(plan.axes, tile.tolist(), strict=True)))
    try:
        generate(schedule, "kernel", Lowering(4, 2, "kernel", True, True))
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


def _late(plan: Plan) -> bool:
    """Some product takes what the chain computes, and so is issued late
    (codegen.triton.hopper.groups)."""
    chain = plan.program.chain
    lefts = [roles.left.tensor for o in chain.operators if (roles := product(o))]
    return any(t not in chain.inputs for t in lefts)
