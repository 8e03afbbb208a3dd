"""Products of small whole numbers on a CPU's vectors: two neighbours along the depth at once.

An instruction of x86 (pmaddwd) multiplies vectors of 16-bit numbers and adds the products of each
two neighbours in 32 bits, without rounding. So a vector register holds twice as many numbers as of
float32. Quantized models multiply such numbers: bytes less their zero points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Bounds, Chain, Interval, Product, whole_range
from mcfuser.device import Device
from mcfuser.expr import NARROW, Call, Read
from mcfuser.lowering.tensorir.matrix import operand_tiles
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Buffer, Compute, Loop, statements

INSTRUCTIONS: Mapping[int, str] = {
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}
"""LLVM's name of the instruction, by the bits of a vector register."""
LARGEST = 2**15
"""The largest magnitude of a number that is multiplied so; with a sign, for it takes 16 bits."""
SUM = 2**31 - 1
"""The largest magnitude of a sum."""


def pairs_up(
    chain: Chain, buffers: Mapping[str, Buffer], s: Compute, tile: Callable[[str], Ints]
) -> NDArray[np.bool_]:
    """Whether a statement is a product whose operands are multiplied in pairs, for tiles.

    `tile` gives the extents of an axis' tiles, 1 for a name that is none. Both operands must be
    whole numbers of at most 16 bits, the right one must be loaded, and the sums of a tile must fit
    into 32 bits. Pairs must be neighbours along the last axis of the depth, in every tile.
    """
    no = np.zeros(np.shape(tile("")), bool)
    found = operand_tiles(s) if s.domain is None else None
    if found is None or not found[0].columns:
        return no
    roles, left, right = found
    operands = [_multiplied(chain, buffers[t].tensor) for t in (left, right)]
    loaded = buffers[right].tensor in chain.inputs
    if None in operands or not loaded or not _kept_whole(chain, s):
        return no
    largest = math.prod(max(-low, high) for low, high in filter(None, operands))
    *others, last = roles.depth
    extent, length = chain.extent(last), tile(last)
    even = length % 2 == 0
    if others and (isinstance(extent, Bounds) or extent % 2):
        return no
    whole = no if others or isinstance(extent, Bounds) else length >= extent
    depth = math.prod((tile(a) for a in roles.depth), start=tile(""))
    result: NDArray[np.bool_] = (even | whole) & (depth * largest <= SUM)
    return result


def _multiplied(chain: Chain, tensor: str) -> Interval | None:
    """Between which numbers a tensor's elements lie, where these can be multiplied in pairs."""
    found = whole_range(chain, Read(tensor, ()))
    fits = found is not None and found[0] >= -LARGEST and found[1] < LARGEST
    return found if fits else None


def _kept_whole(chain: Chain, s: Compute) -> bool:
    """Whether the operands are multiplied as they are: no cast rounds them."""
    assert isinstance(s.operator.body, Call)
    return all(whole_range(chain, a) is not None for a in s.operator.body.args)


def paired_products(
    plan: Plan, sizes: Sizes
) -> Iterator[tuple[Compute, tuple[Loop, ...], Product, str, NDArray[np.bool_]]]:
    """The products of a plan, the loops around them, the roles of their axes, the tile that is the
    left operand, and which candidates multiply them in pairs."""
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    for s, outer in statements(body):
        found = operand_tiles(s) if isinstance(s, Compute) else None
        if isinstance(s, Compute) and found is not None:
            taken = pairs_up(plan.program.chain, named, s, sizes.of)
            yield s, outer, found[0], found[1], taken


def pairs(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates have a product whose operands may be multiplied in pairs."""
    some = np.zeros(len(tiles), bool)
    if any(plan.program.chain.tensor(n).dtype in NARROW for n in plan.program.chain.inputs):
        for *_, taken in paired_products(plan, sizes_of(plan, tiles)):
            some |= taken
    return some
