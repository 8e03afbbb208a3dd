"""How a CPU walks over the sequence of a recurrence: in which panels of units and blocks of rows.

Directions, and rows of a batch, know nothing of each other: each core walks over the sequence for
some of them. Where there are fewer than cores, and matrices so large that it pays to wake the other
cores in every step, all cores share the panels of a step instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain.recurrence import Recurrence
from mcfuser.device import Device

WAKING = 3e-6
"""Seconds in which the other cores begin and end a part of a step."""
COMPUTED = 30e9
"""Numbers of a matrix that a core multiplies in a second by a row, where many rows share them."""
READ = 16e9, 10e9, 4e9
"""Numbers of a matrix that a core reads in a second: from its own cache, the last one, memory."""
REGISTERS = 14
"""Vectors that sums may fill: with more, LLVM spills, also where a CPU has 32 registers."""
LANES = 64
"""The most units of a panel."""
FULL = 8
"""Sums that must be under way so that no product waits for the one before it."""


@dataclass(frozen=True)
class Walk:
    """A recurrence over so many steps, and how it is computed.

    Each panel has `lanes` of the `hidden` units, and each block `rows` of the batch; where it
    `shares`, cores share a step's panels.
    """

    recurrence: Recurrence
    steps: int
    batch: int
    hidden: int
    lanes: int
    rows: int
    shares: bool

    @property
    def panels(self) -> int:
        return -(-self.hidden // self.lanes)

    @property
    def blocks(self) -> int:
        """Blocks of rows; the last one begins earlier where it would end behind the batch."""
        return -(-self.batch // self.rows)

    @property
    def padded(self) -> int:
        return self.panels * self.lanes

    @property
    def slots(self) -> int:
        """Rows of the states that one loop over the steps has."""
        return self.recurrence.directions * self.batch if self.shares else self.rows


def walked(found: Recurrence, steps: int, batch: int, hidden: int, device: Device) -> Walk:
    """How a recurrence is computed on a CPU: in panels and blocks whose sums fit the registers, and
    which give the core with the most blocks the least to do."""
    width = device.bits // 32
    sums = max(len(stage.sums) for stage in found.stages)
    forms = [
        Walk(found, steps, batch, hidden, width * wide, rows, False)
        for wide in (1, 2, 4, 8)
        for rows in range(1, min(batch, REGISTERS) + 1)
        if sums * wide * rows <= max(REGISTERS, sums) and width * wide <= LANES
    ]

    def cost(w: Walk) -> float:
        """What a core does for a unit, where a product counts as one, an element of the matrix as
        two, and one of the state as one and a half."""
        wide = w.lanes // width
        waits = max(1.0, FULL / (sums * wide * w.rows))
        each = (sums * (w.rows + 2) + 1.5 * w.rows / wide) * waits * w.padded / hidden
        return _most(w, device) * each

    best = min(forms, key=cost)
    return replace(best, shares=_shares(best, device))


def _most(walk: Walk, device: Device) -> int:
    """Blocks of rows that one core has, if cores share no step."""
    return -(-walk.recurrence.directions * walk.blocks // device.units)


def _shares(walk: Walk, device: Device) -> bool:
    """Whether a step takes less time if all cores share it."""
    numbers = walk.recurrence.sums * walk.hidden**2
    part = numbers * walk.recurrence.directions / device.units

    def seconds(count: float, rows: int) -> float:
        held = sum(4 * count > size for size in (device.fast, device.cache or math.inf))
        return count * max(rows / COMPUTED, 1 / READ[held])

    alone = _most(walk, device) * seconds(numbers, walk.rows)
    return seconds(part, walk.batch) + WAKING * len(walk.recurrence.stages) < alone


def packed(square: NDArray[np.float32], walk: Walk) -> NDArray[np.float32]:
    """The matrices [directions, depth, sums x hidden] by panels, stage by stage."""
    directions, depth, _ = square.shape
    sums = walk.recurrence.sums
    by_unit = square.reshape(directions, depth, sums, walk.hidden)
    wide = np.pad(by_unit, ((0, 0), (0, 0), (0, 0), (0, walk.padded - walk.hidden)))
    panels = wide.reshape(directions, depth, sums, walk.panels, walk.lanes)
    stages, begun = [], 0
    for stage in walk.recurrence.stages:
        end = begun + len(stage.sums)
        part = panels[:, :, begun:end].transpose(0, 3, 1, 2, 4)
        stages.append(part.reshape(directions, -1))
        begun = end
    return np.ascontiguousarray(np.concatenate(stages, axis=1))
