"""What a candidate may ask of Triton's compiler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.lowering.triton.hopper.feasible import divisible, mapped
from mcfuser.lowering.triton.instructions import HOPPER
from mcfuser.space.knobs import knob
from mcfuser.space.plan import Ints, Plan


def _split(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    return np.full(len(tiles), plan.split is not None)


def _mapped(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    if device.arch != HOPPER:
        return np.zeros(len(tiles), bool)
    return mapped(plan, tiles)


def _divisible(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    if device.arch != HOPPER or plan.split is not None:
        return np.zeros(len(tiles), bool)
    return divisible(plan, tiles)


@dataclass(frozen=True, slots=True)
class TritonKnobs:
    """What belongs to Triton's compiler: warps of a block, stages of a pipelined loop; who
    combines the parts of a split: a kernel of its own, or the last block that ends a part; and
    whether operands of products come through tensor maps, where they can. `groups` gives warps
    work of their own: one of them loads, two or three groups of `warps` compute 64 rows each."""

    warps: int = knob(4, (1, 2, 4, 8))
    stages: int = knob(2, (1, 2, 3, 4))
    combine: str = knob("kernel", ("kernel", "last"), _split, measured=True)
    tma: bool = knob(False, (False, True), _mapped)
    groups: bool = knob(False, (False, True), _divisible, measured=True)

    def allowed(self, device: Device) -> bool:
        """Warp groups are of four warps, load through tensor maps in a pipeline, and combine
        nothing."""
        pipelined = self.warps == 4 and self.stages > 1 and self.tma
        return not self.groups or (pipelined and self.combine == "kernel")
