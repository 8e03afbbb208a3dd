"""The knobs of Triton's compiler: what a candidate chooses besides its plan and its tile sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.lowering.triton.hopper.feasible import divisible, mapped
from mcfuser.lowering.triton.instructions import HOPPER, multiplies_tf32
from mcfuser.lowering.triton.planned import planned
from mcfuser.lowering.triton.precision import PRECISIONS, THREADS
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


def _wide(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    return np.full(len(tiles), bool(planned(plan).wide) and multiplies_tf32(device.arch))


@dataclass(frozen=True, slots=True)
class TritonKnobs:
    """Warps of a block; stages of a pipelined loop; `combine`, which says whether a second kernel
    combines the parts of a split, or the last block that ends; `tma`, whether operands of products
    come through tensor maps where they can; `groups`, whether the kernel is specialised by
    warps: one warp loads, and two to four warp groups of `warps` warps compute 64 rows each; and
    `dot`, how products of float32 operands are computed (lowering.triton.precision)."""

    warps: int = knob(4, (1, 2, 4, 8))
    stages: int = knob(2, (1, 2, 3, 4))
    combine: str = knob("kernel", ("kernel", "last"), _split, measured=True)
    tma: bool = knob(False, (False, True), _mapped)
    groups: bool = knob(False, (False, True), _divisible, measured=True)
    dot: str = knob(THREADS, tuple(PRECISIONS), _wide)

    def allowed(self, device: Device) -> bool:
        """Whether these knobs go together: warp groups have four warps, load through tensor maps in
        a pipeline, and never combine parts; and they make no parts of operands."""
        if self.dot != THREADS and self.groups:
            return False
        pipelined = self.warps == 4 and self.stages > 1 and self.tma
        return not self.groups or (pipelined and self.combine == "kernel")
