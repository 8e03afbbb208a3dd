"""Neighbouring blocks that one core runs one after the other, with what they share copied once.

A block copies the right operands of its products into panels, where they are no constants, and
inputs with padding into boxes. Blocks that differ only in their positions along other axes, as the
rows of an attention, copy the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Bounds, Chain
from mcfuser.device import Device
from mcfuser.expr import axes
from mcfuser.lowering.loops import inside_grid
from mcfuser.lowering.tensorir.matrix import operand_tiles
from mcfuser.lowering.tensorir.micro import micro_product
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Buffer, Compute, Load, Loop, Statement, statements

STEP = 4
"""How many times as many neighbours the next larger number of them is."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The axes of the grid along which neighbouring blocks copy the same, and the loads at the head
    of a block that are the same for these."""

    axes: tuple[str, ...]
    loads: tuple[Load, ...]


def sharing(chain: Chain, buffers: Mapping[str, Buffer], body: Sequence[Statement]) -> Sharing:
    """What neighbouring blocks share: nothing where they copy nothing, or are parts, or an extent
    of the grid is known at run time only."""
    grid, body = inside_grid(body)
    used = {a for s in _copied(chain, buffers, body) for a in axes(s.read)}
    known = not any(isinstance(chain.extent(a), Bounds) for a in grid)
    whole = not any(isinstance(s, Loop) and s.kind == "split" for s in body)
    along = tuple(a for a in grid if a not in used) if used and known and whole else ()
    loads = (s for s in body if isinstance(s, Load) and not {*axes(s.read)} & {*along})
    return Sharing(along, tuple(loads) if along else ())


def shared_by(plan: Plan) -> Sharing:
    """What neighbouring blocks of a plan share."""
    buffers, body = plan.placed
    return sharing(plan.program.chain, {b.name: b for b in buffers}, body)


def sharers(shared: Sharing, sizes: Sizes) -> Ints:
    """How many blocks of each candidate copy the same; 1 where none do."""
    result: Ints = reduce(mul, (sizes.trips(a) for a in shared.axes), sizes.one)
    return result


def neighbours(plan: Plan, tiles: Ints) -> Ints:
    """The same of a plan's candidates."""
    return sharers(shared_by(plan), sizes_of(plan, tiles))


def have_neighbours(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates have blocks that copy the same."""
    result: NDArray[np.bool_] = neighbours(plan, tiles) > 1
    return result


def groups(blocks: Ints, most: Ints) -> Ints:
    """Into how many groups of at most so many neighbours as many blocks are split, as even ones as
    can be."""
    result: Ints = -(-blocks // most)
    return result


def _copied(
    chain: Chain, buffers: Mapping[str, Buffer], body: Sequence[Statement]
) -> Iterator[Load]:
    """The loads at the head of a block that may be copied, whatever the tiles are."""
    right = set[str]()
    for s, _ in statements(body):
        if isinstance(s, Compute) and micro_product(chain, buffers, s) is not None:
            found = operand_tiles(s)
            assert found is not None
            right.add(found[2])
    for load in body:
        if isinstance(load, Load):
            tensor = chain.tensor(load.read.tensor)
            if tensor.padding or (load.buffer in right and not tensor.constant):
                yield load
