"""Products spread over the warps of a block: tiles a warp takes, and what is computed twice."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.lowering.triton.dot import Dot
from mcfuser.lowering.triton.instructions import COLUMNS, LEAST


def dot(rows: float, columns: float, across: float, along: float) -> Dot:
    each = (np.asarray([float(x)]) for x in (rows, columns, 64.0))
    return Dot(*each, np.asarray([False]), np.asarray([across]), np.asarray([along]))


@pytest.mark.parametrize(
    ("rows", "columns", "across", "along", "row_tiles", "column_tiles", "repeated"),
    [
        (64, 64, 4.0, 1.0, 1, 8, 1.0),  # four warps, 16 rows and all columns each
        (128, 64, 4.0, 1.0, 2, 8, 1.0),
        (128, 64, 2.0, 2.0, 4, 4, 1.0),
        (16, 64, 4.0, 1.0, 1, 8, 4.0),  # rows for one warp: the others compute the same
        (64, 8, 1.0, 4.0, 4, 1, 4.0),
        (24, 64, 1.0, 1.0, 2, 8, 32 / 24),  # half of a warp's second tile is padding
    ],
)
def test_tiles_of_a_warp(
    rows: float, columns: float, across: float, along: float, row_tiles: float,
    column_tiles: float, repeated: float,
) -> None:  # fmt: skip
    found = dot(rows, columns, across, along)
    assert found.row_tiles == row_tiles and found.column_tiles == column_tiles
    assert found.repeated == pytest.approx(repeated)


def test_a_warp_takes_sixteen_rows_and_eight_columns() -> None:
    assert (LEAST, COLUMNS) == (16, 8)
