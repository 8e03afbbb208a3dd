"""Where Triton has the lanes of a tile that no matrix product reads or makes: in a thread, in the
threads of a warp, in several warps.

Triton distributes such a tile as it loads it. A thread takes a vector along the dimension that is
contiguous in memory, the threads of a warp follow each other along it, then its warps do, and what
is left of either goes on along the next dimension. No vector is so long that threads get none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mcfuser.chain import BYTES, Operator, digits, strides_of
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.occupancy import WARP
from mcfuser.model.terms import VECTOR
from mcfuser.space.plan import Floats
from mcfuser.space.statement import Load


@dataclass(frozen=True, slots=True)
class Spread:
    """How many threads of a warp, and how many warps, have lanes along an axis [candidates]."""

    threads: Floats
    warps: Floats


def lanes_of(made: TritonCandidates, o: Operator) -> Mapping[str, Spread]:
    """Where the lanes of an operator that is no product are along each axis, by axis."""
    order, most = _order(made, o)
    threads, warps = np.full(len(made.tiles), float(WARP)), made.warps.astype(np.float64)
    vector = np.minimum(most, np.maximum(1.0, made.lanes(order) / (threads * warps)))
    found = {}
    for a in order:
        groups = np.maximum(1.0, made.width(a) / vector)
        here = np.minimum(threads, groups)
        across = np.minimum(warps, groups / here)
        found[a] = Spread(here, across)
        threads, warps, vector = threads / here, warps / across, np.ones(len(made.tiles))
    return found


def _order(made: TritonCandidates, o: Operator) -> tuple[list[str], float]:
    """The axes of an operator, that first along which threads load vectors, and the elements of
    the longest vector. They are in the order of the load that has most of them."""
    chain, order, most = made.plan.program.chain, list[str](), 1.0
    for s, _ in made.facts.points:
        if not isinstance(s, Load):
            continue
        strides, shape = strides_of(chain, s.read.tensor), chain.shape(s.read.tensor)
        steps = sorted(
            (digits(stride, n)[-1].stride, index.plain)
            for stride, n, index in zip(strides, shape, s.read.indices, strict=True)
            if index.plain in o.related
        )
        if len(steps) > len(order):
            order = [a for _, a in steps if a is not None]
            nbytes = min(VECTOR, made.facts.vectors[s.buffer])
            most = nbytes / BYTES[chain.tensor(s.read.tensor).dtype]
    return [*order, *(a for a in reversed(o.related) if a not in order)], most
