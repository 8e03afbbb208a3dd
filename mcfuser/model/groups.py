"""The time of kernels with warp groups and a deferred product, whose warp groups do not wait for
each other.

    t = queue * (block + dots + arithmetic + iterations)

One block runs on a multiprocessor at a time. Its tensor cores and its other units wait for each
other in part only, which the constants of these terms know and their counts do not.
"""

from __future__ import annotations

import numpy as np

from mcfuser.lowering.loops import inner, serial
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.terms import Terms
from mcfuser.space.plan import Floats, repeats

PACED = ("paced_block", "paced_product", "paced_operation", "paced_turn")
"""Blocks, which pay for barriers, the reallocation of registers, the first tiles and the output;
instructions of warp groups (`terms`: group_all); operations on elements (simple_all); and
iterations, which wait for a tile or for another warp group."""


def matrix(made: TritonCandidates, counts: Terms, units: int) -> Floats:
    """Events [candidates, PACED] that follow each other on one of so many multiprocessors; `made`
    has the warps of two groups."""
    iterations = np.zeros(counts.size)
    for loop, outer in serial(made.facts.body):
        iterations += repeats(made.sizes, inner(outer)) * made.sizes.iterations(loop)
    each = [np.ones(counts.size), counts.of("group_all"), counts.of("simple_all"), iterations]
    result: Floats = np.stack(each, axis=1) * counts.queue(units)[:, None]
    return result
