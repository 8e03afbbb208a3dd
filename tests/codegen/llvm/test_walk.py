"""A walk over a sequence is divided so that cores have alike much to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.codegen.llvm.walk import REGISTERS, Walk, packed, walked
from tests.support.host import HOST
from tests.support.recurrences import cell

TWO = replace(HOST, units=2, bits=256, fast=512 << 10)


@pytest.mark.parametrize(
    ("bits", "sums", "directions", "batch", "hidden", "lanes", "rows"),
    [
        (256, 4, 1, 1, 128, 16, 1),
        (256, 3, 1, 1, 128, 32, 1),
        (256, 1, 1, 1, 256, 64, 1),
        (256, 4, 1, 8, 128, 8, 2),
        (256, 4, 1, 2, 64, 16, 1),
        (512, 4, 1, 1, 128, 32, 1),
        (512, 3, 1, 1, 128, 64, 1),
        (512, 1, 1, 1, 256, 64, 1),
        (512, 4, 1, 64, 256, 16, 3),
        (512, 3, 2, 4, 256, 16, 4),
    ],
)
def test_sums_fill_the_registers_and_every_core_has_rows(
    bits: int, sums: int, directions: int, batch: int, hidden: int, lanes: int, rows: int
) -> None:
    """What was measured to be fastest, or next to it (two cores of an EPYC with AVX2, and of an
    Emerald Rapids Xeon with AVX-512, 2026-11-28)."""
    found = walked(cell((sums,), directions), 50, batch, hidden, replace(TWO, bits=bits))
    assert (found.lanes, found.rows) == (lanes, rows)
    assert sums * rows * lanes // (bits // 32) <= REGISTERS


def test_cores_share_a_step_where_its_matrices_are_large_and_rows_are_few() -> None:
    assert not walked(cell((4,)), 50, 1, 128, TWO).shares
    assert walked(cell((4,)), 50, 1, 256, TWO).shares
    assert not walked(cell((4,), 2), 50, 1, 256, TWO).shares  # each core has a direction
    assert walked(cell((4,), 2), 50, 1, 256, replace(TWO, units=16)).shares
    assert not walked(cell((4,)), 50, 1, 256, replace(TWO, units=1)).shares


def test_the_last_block_begins_earlier_and_the_last_panel_has_zeros() -> None:
    walk = Walk(cell((2,)), 3, 5, 13, 8, 2, False)
    assert (walk.panels, walk.padded, walk.blocks) == (2, 16, 3)
    square = np.arange(13 * 26, dtype=np.float32).reshape(1, 13, 26) + 1
    (panels,) = packed(square, walk).reshape(1, 2, 13, 2, 8)
    assert panels[1, 4, 1, 4] == square[0, 4, 13 + 12]
    assert not panels[1, :, :, 5:].any()
