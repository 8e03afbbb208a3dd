"""The time of kernels that multiply no matrices: maps, and reductions with what is computed of
their results.

    t = launch + second kernel or last block + blocks + distinct bytes
        + queue * (bytes and operations of a block) + waves * (what a thread waits for)

Blocks on a multiprocessor queue for its units, and overlap their waits (model.fitted). What counts
here is hardly seen beside a product: how many operations and vectors follow each other in a thread,
that a reduction whose lanes are spread over several warps passes through shared memory, which takes
the longer, the more warps there are, and that what is loaded for one of a tile's axes does, too.
So these kernels have constants of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES
from mcfuser.device import Device
from mcfuser.expr import Affine
from mcfuser.lowering.loops import inner
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.lowering.triton.rows import PAIR
from mcfuser.model.lanes import lanes_of
from mcfuser.model.locality import contiguous_bytes, distinct_tiles, spacing
from mcfuser.model.occupancy import WARP
from mcfuser.model.terms import LIMIT, VECTOR, Terms, operations
from mcfuser.space.plan import Floats, repeats
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Repair,
    SaveOld,
    Store,
    StorePartial,
)

PLAIN = (
    "plain_launch", "plain_second", "plain_ended", "plain_combined", "plain_block",
    "plain_distinct", "plain_sector", "plain_stored", "plain_operation", "plain_step",
    "plain_vector", "plain_handed", "plain_written", "plain_scalar", "plain_crossed",
    "plain_shuffled", "plain_spill",
)  # fmt: skip
"""The launch; a second kernel, or the last block, that combines parts, and bytes of these; blocks
that start; bytes that no other block which runs at the same time reads; bytes of sectors that a
block loads, and that it stores; operations on elements of all its threads, and of one; vectors that
a thread loads, loads that warps hand to each other, and vectors that a thread stores; numbers that
are loaded alone; warps that pass each other the sums of a reduction; elements that the threads of a
warp do; and registers kept in memory."""
SECTOR = 32
"""Bytes that the cache hands over at least."""

_Events = dict[str, Floats]


def matrix(made: TritonCandidates, counts: Terms, device: Device) -> Floats:
    """Events [candidates, PLAIN] of kernels without products as they add up in time; `counts` has
    their blocks."""
    queue, waves = counts.queue(device.units), counts.queue(device.units * counts.resident)
    together, share = counts.together(device.units), counts.blocks / device.units
    events: _Events = {n: np.zeros(counts.size) for n in PLAIN}
    events["plain_launch"] += 1.0
    events["plain_block"] += share
    iterations = np.ones(counts.size)
    for s, outer in made.facts.points:
        times = repeats(made.sizes, inner(outer))
        iterations = np.maximum(iterations, times)
        if isinstance(s, Load):
            _load(events, made, s, queue * times, waves * times)
            others = distinct_tiles(made, s, outer, together) / together
            events["plain_distinct"] += share * times * _inside(made, s.buffer) * others
        elif isinstance(s, Compute):
            _compute(events, made, s, queue * times, waves * times)
        elif isinstance(s, Repair):
            elements = _a_thread(made, [d.index.plain for d in made.buffer(s.buffer).dims])
            _operations(events, made, elements, queue * times, waves * times)
        elif isinstance(s, Store):
            _store(events, made, s, queue * times, waves * times)
        elif isinstance(s, Combine):
            _combine(events, made, s)
        elif not isinstance(s, Init | SaveOld | StorePartial):  # these set registers, or few bytes
            assert_never(s)
    events["plain_spill"] += waves * np.maximum(0.0, made.registers - LIMIT) * iterations
    result: Floats = np.stack([events[n] for n in PLAIN], axis=1)
    return result


def _load(events: _Events, made: TritonCandidates, s: Load, busy: Floats, waits: Floats) -> None:
    most = min(VECTOR, made.facts.vectors[s.buffer])
    sectors, vectors = _moved(made, s.buffer, s.read.tensor, s.read.indices, most)
    events["plain_sector"] += busy * sectors
    events["plain_vector"] += waits * vectors
    width = BYTES[made.plan.program.chain.tensor(s.read.tensor).dtype]
    events["plain_scalar"] += waits * (made.nbytes(s.buffer) <= width)
    events["plain_handed"] += waits * _handed(made, s)


def _handed(made: TritonCandidates, s: Load) -> NDArray[np.bool_]:
    """Whether what is loaded has only some of a tile's axes: the threads that load its vectors are
    not those that compute with them, so that warps hand it to each other."""
    own = {d.index.plain for d in made.buffer(s.buffer).dims}
    lanes = made.lanes(a for a in made.sizes.tile if a in own)
    whole = made.lanes(made.sizes.tile)
    row = contiguous_bytes(made, s.read.tensor, s.read.indices)
    wide = row > BYTES[made.plan.program.chain.tensor(s.read.tensor).dtype]
    some: NDArray[np.bool_] = (made.warps > 1) & (lanes > 1) & (lanes < whole) & wide
    return some


def _store(events: _Events, made: TritonCandidates, s: Store, busy: Floats, waits: Floats) -> None:
    indices = [d.index for d in made.buffer(s.buffer).dims]
    sectors, vectors = _moved(made, s.buffer, s.tensor, indices, VECTOR)
    events["plain_stored"] += busy * sectors
    events["plain_written"] += waits * vectors


def _moved(
    made: TritonCandidates, buffer: str, tensor: str, indices: Sequence[Affine], most: int
) -> tuple[Floats, Floats]:
    """Bytes of the sectors that hold a tile, which are moved whole, and vectors of at most so many
    bytes that a thread moves one after the other. What is a row in memory, or every other number of
    one, is moved as that (lowering.triton.rows)."""
    nbytes, width = (
        _inside(made, buffer),
        float(BYTES[made.plan.program.chain.tensor(tensor).dtype]),
    )
    count, apart = spacing(made, tensor, indices)
    sectors = nbytes / width * np.maximum(SECTOR / count, np.minimum(width * apart, SECTOR))
    beside = np.minimum(contiguous_bytes(made, tensor, indices), nbytes)
    row = np.where(apart <= PAIR, width * count * apart, 0.0)
    longest = np.where(row > beside, VECTOR, most)
    moved = np.where(row > beside, apart, 1.0) * nbytes
    each = moved / (WARP * made.warps * np.minimum(longest, np.maximum(row, beside)))
    return sectors, np.maximum(1.0, each)


def _inside(made: TritonCandidates, buffer: str) -> Floats:
    """Bytes of a tile that lie inside the tensor, on average over its tiles; lanes beyond it are
    masked, and move nothing."""
    nbytes = made.nbytes(buffer)
    for axis in (d.index.plain for d in made.buffer(buffer).dims):
        if axis is not None:
            lanes = made.sizes.trips(axis) * made.asked(axis)
            nbytes = nbytes * np.minimum(1.0, made.plan.program.chain.size(axis) / lanes)
    return nbytes


def _compute(
    events: _Events, made: TritonCandidates, s: Compute, busy: Floats, waits: Floats
) -> None:
    """Elements are computed one by one. To reduce them, a thread adds up what it has along an axis,
    then threads of a warp do, then warps."""
    o = s.operator
    each = _a_thread(made, o.related)
    _operations(events, made, each * operations(s), busy, waits)
    if o.reduce == "none":
        return
    lanes, left = lanes_of(made, o), each
    for a in reversed(o.over):
        along = lanes[a]
        held = np.maximum(1.0, made.width(a) / (along.threads * along.warps))
        left = np.maximum(1.0, left / held)
        events["plain_shuffled"] += waits * np.log2(along.threads) * left
        events["plain_crossed"] += waits * np.where(along.warps > 1, along.warps, 0.0)


def _operations(
    events: _Events, made: TritonCandidates, each: Floats, busy: Floats, waits: Floats
) -> None:
    events["plain_operation"] += busy * made.warps * each
    events["plain_step"] += waits * each


def _a_thread(made: TritonCandidates, axes: Sequence[str | None]) -> Floats:
    """Elements along some axes that a thread has."""
    total = made.lanes([a for a in axes if a is not None])
    least: Floats = np.maximum(1.0, total / (WARP * made.warps))
    return least


def _combine(events: _Events, made: TritonCandidates, s: Combine) -> None:
    dims = made.buffer(s.buffer).dims
    elements = made.lanes([d.index.plain for d in dims if d.index.plain is not None])
    events["plain_combined"] += made.plan.parts * BYTES["float32"] * elements
    events["plain_second"] = np.where(made.last, 0.0, 1.0)
    events["plain_ended"] = np.where(made.last, 1.0, 0.0)
