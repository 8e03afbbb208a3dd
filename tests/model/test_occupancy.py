"""Blocks that a multiprocessor holds, against CUDA's own calculator."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.occupancy import OccupancyBound, blocks_held


def held(
    registers: int, shared: int, warps: int, device: Device
) -> tuple[int, set[OccupancyBound]]:
    """The blocks of one kernel, and what bounds them."""
    given = [np.asarray([float(n)]) for n in (registers, shared, warps)]
    found = {bound: int(n[0]) for bound, n in blocks_held(*given, device).items()}
    least = min(found.values())
    return least, {bound for bound, n in found.items() if n == least}


@pytest.mark.parametrize(
    ("device", "registers", "shared", "warps", "blocks", "bounds"),
    [
        ("nvidia/h200", 168, 0, 4, 3, {"registers"}),
        ("nvidia/h200", 80, 0, 2, 12, {"registers"}),  # 24 warps, six in each quarter
        ("nvidia/h200", 80, 0, 1, 24, {"registers"}),
        ("nvidia/h200", 32, 232_448, 8, 1, {"shared memory"}),
        ("nvidia/h200", 32, 76_000, 4, 3, {"shared memory"}),
        ("nvidia/h200", 32, 77_000, 4, 2, {"shared memory"}),
        ("nvidia/h200", 32, 0, 8, 8, {"registers", "threads"}),
        ("nvidia/h200", 24, 0, 1, 32, {"blocks"}),
        ("nvidia/a100", 255, 41_000, 4, 2, {"registers"}),
        ("nvidia/l4", 40, 0, 8, 6, {"registers", "threads"}),
        ("nvidia/l4", 24, 0, 1, 24, {"blocks"}),
        ("nvidia/rtx3080", 24, 0, 1, 16, {"blocks"}),
        ("nvidia/rtx3080", 24, 33_000, 4, 3, {"shared memory"}),
    ],
)
def test_as_many_as_cuda_says(
    device: str, registers: int, shared: int, warps: int, blocks: int, bounds: set[OccupancyBound]
) -> None:
    """The numbers are those of cuda_occupancy.h, CUDA 13."""
    assert held(registers, shared, warps, CATALOGUE[device]) == (blocks, bounds)


def test_what_is_not_known_of_a_device_bounds_nothing() -> None:
    unknown = Device("x", "cuda", "sm_120", 1, (("float32", 1e12),), 1e12, 101_376)
    found = blocks_held(np.ones(2), np.zeros(2), np.ones(2), unknown)
    assert set(found) == {"registers", "shared memory"}
