"""Weights that a micro-kernel makes of constants in registers.

Weights of few bits become numbers by a map: shifts, zero points, scales. Where a product has so few
rows that it uses each of them in one micro-tile alone, they are made where they are used, and no
tile of them is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, product
from mcfuser.expr import Index, reads, walk
from mcfuser.lowering.tensorir.matrix import oriented
from mcfuser.space.plan import Ints
from mcfuser.space.statement import Buffer, Compute, Statement, statements

FEW = 4
"""The most rows of such a product: all micro-tiles have as many."""


def unpacked(
    chain: Chain,
    buffers: Mapping[str, Buffer],
    body: Sequence[Statement],
    tile: Callable[[str], Ints],
) -> dict[str, NDArray[np.bool_]]:
    """For each tile of weights that a map makes of constants for one product alone, which of some
    candidates make them in registers; `tile` gives the candidates' tiles of an axis."""
    maps = {s.buffer for s, _ in statements(body) if isinstance(s, Compute) and _scales(chain, s)}
    found: dict[str, NDArray[np.bool_]] = {}
    for s, _ in statements(body) if maps else ():
        roles = product(s.operator) if isinstance(s, Compute) else None
        if roles is None or not isinstance(s, Compute) or s.domain is not None:
            continue
        roles = oriented(roles)
        tiles = dict(zip(reads(s.operator.body), reads(s.body), strict=True))
        weights = tiles[roles.right].tensor
        if weights in maps and len(chain.readers(buffers[weights].tensor)) == 1:
            rows = np.asarray(1)
            for a in roles.rows:
                rows = rows * tile(a)
            found[weights] = np.asarray(rows <= FEW)
    return found


def _scales(chain: Chain, s: Compute) -> bool:
    """Whether a statement is a map of constants, and knows no positions."""
    o = s.operator
    known = all(r.tensor in chain.inputs and chain.tensor(r.tensor).constant for r in reads(o.body))
    if o.reduce != "none" or s.domain is not None or o.out in chain.outputs or not known:
        return False
    return not any(isinstance(n, Index) for n in walk(o.body))
