"""A product as the tensor cores run it: how its tile is spread over the warps of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcfuser.lowering.triton.instructions import COLUMNS, LEAST
from mcfuser.space.plan import Floats


@dataclass(frozen=True)
class Dot:
    """A product as the tensor cores run it; every field is an array over candidates.

    `across` and `along` count warps over rows and columns; `repeated` is how often the same
    element is computed, where there are more warps than work.
    """

    rows: Floats
    columns: Floats
    depth: Floats
    grouped: NDArray[np.bool_]
    across: Floats
    along: Floats

    @property
    def row_tiles(self) -> Floats:
        """Times a warp takes 16 rows."""
        return np.ceil(self.rows / LEAST / self.across)

    @property
    def column_tiles(self) -> Floats:
        """Times a warp takes 8 columns."""
        return np.ceil(self.columns / COLUMNS / self.along)

    @property
    def repeated(self) -> Floats:
        result: Floats = (
            self.row_tiles * LEAST * self.across / self.rows
            * (self.column_tiles * COLUMNS * self.along / self.columns)
        )  # fmt: skip
        return result
