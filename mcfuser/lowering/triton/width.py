"""How many lanes Triton has along an axis, for one candidate or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, Product
from mcfuser.lowering.triton.instructions import LEAST

IntOrInts = int | NDArray[np.int64]
"""A number, or one for each of many candidates."""


def widths(
    chain: Chain, products: Iterable[Product], tile: Callable[[str], IntOrInts]
) -> dict[str, NDArray[np.int64]]:
    """Lanes by axis: a power of two, and enough of them for every product."""
    lanes_of: dict[str, Any] = {a.name: power(np.asarray(tile(a.name))) for a in chain.axes}
    for roles in products:
        for group in (roles.rows, roles.columns, roles.depth):
            lanes = np.prod([lanes_of[a] for a in group], axis=0)
            lanes_of[group[-1]] = lanes_of[group[-1]] * np.maximum(LEAST // lanes, 1)
    return lanes_of


def power(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next power of two."""
    result: NDArray[np.int64] = np.exp2(np.ceil(np.log2(n))).astype(np.int64)
    return result
