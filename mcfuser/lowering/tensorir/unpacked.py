"""Weights that a micro-kernel makes of constants in registers.

Weights of few bits become numbers by a map: shifts, zero points, scales. Where a product has so few
rows that it uses each of them in one micro-tile alone, they are made where they are used, and no
tile of them is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain, Operator, made_weights
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
    maps = {out for out in made_weights(chain) if _scales(chain, chain.operator(out))}
    found: dict[str, NDArray[np.bool_]] = {}
    for s, _ in statements(body) if maps else ():
        if not isinstance(s, Compute) or s.domain is not None:
            continue
        if (roles := s.operator.product) is None:
            continue
        roles = oriented(roles)
        tiles = dict(zip(s.operator.reads, reads(s.body), strict=True))
        weights = tiles[roles.right].tensor
        if weights in maps and len(chain.readers(buffers[weights].tensor)) == 1:
            rows = np.asarray(1)
            for a in roles.rows:
                rows = rows * tile(a)
            found[weights] = np.asarray(rows <= FEW)
    return found


def _scales(chain: Chain, o: Operator) -> bool:
    """Whether weights are made of inputs, everywhere and wherever that is."""
    if o.domain is not None or not {r.tensor for r in o.reads} <= {*chain.inputs}:
        return False
    return not any(isinstance(n, Index) for n in walk(o.body))
