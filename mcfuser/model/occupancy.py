"""How many blocks of a GPU kernel a multiprocessor holds at a time, and which resource bounds that.

The rules are those of CUDA's occupancy calculator (cuda_occupancy.h, CUDA 13), the same for all
architectures since sm_80.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from mcfuser.device import Device
from mcfuser.space.plan import Floats

OccupancyBound = Literal["registers", "shared memory", "threads", "blocks"]
"""What bounds the number of blocks."""

FILE = 65536
"""Registers of a multiprocessor, which its quarters share evenly."""
QUARTERS = 4
"""Schedulers of a multiprocessor, each with registers and a tensor core of its own."""
WARP = 32
"""Threads of a warp."""
PER_THREAD, MOST = 8, 256
"""Registers are handed to a thread in multiples of the first, and no more than the second."""
RESERVED, UNIT = 1024, 128
"""Bytes of shared memory that every block takes besides its own, and those that it is handed out
in multiples of."""


def blocks_held(
    registers: Floats, shared: Floats, warps: Floats, device: Device
) -> Mapping[OccupancyBound, Floats]:
    """The blocks that a multiprocessor has room for [kernels], by each resource alone: of kernels
    with so many registers a thread, bytes of shared memory a block, and warps a block. A bound that
    is not known of the device is left out."""
    given = np.minimum(MOST, np.ceil(registers / PER_THREAD) * PER_THREAD)
    taken = np.ceil((shared + RESERVED) / UNIT) * UNIT
    found: dict[OccupancyBound, Floats] = {
        "registers": np.floor(QUARTERS * np.floor(FILE / QUARTERS / (given * WARP)) / warps),
        "shared memory": np.floor((device.fast + RESERVED) / taken),
    }
    if device.threads:
        found["threads"] = np.floor(device.threads / (WARP * warps))
    if device.blocks:
        found["blocks"] = np.full_like(taken, device.blocks)
    return found
