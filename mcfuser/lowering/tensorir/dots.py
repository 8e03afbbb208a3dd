"""Products of small whole numbers on a CPU's vectors: short dot products along the depth.

Instructions of x86 multiply each two neighbours of 16 bits (pmaddwd), or each four of 8 bits
(vpdpbusd, of VNNI), and add these products in 32 bits, without rounding. So a vector register holds
two or four times as many numbers as of float32. Quantized models multiply such numbers: bytes less
their zero points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Bounds, Chain, Interval, Product, strides_of, whole_range
from mcfuser.device import Device
from mcfuser.expr import NARROW, Call, Expr, Read, axes, uncast
from mcfuser.lowering.tensorir.matrix import operand_tiles, oriented
from mcfuser.space.plan import Ints, Plan, Sizes, sizes_of
from mcfuser.space.statement import Buffer, Compute, Loop, statements

PAIR, QUAD = 2, 4
"""The lengths of dot products that there are instructions for."""
INSTRUCTIONS: Mapping[int, Mapping[int, str]] = {
    PAIR: {256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"},
    QUAD: {256: "llvm.x86.avx512.vpdpbusd.256", 512: "llvm.x86.avx512.vpdpbusd.512"},
}
"""LLVM's name of the instruction, by its length and by the bits of a vector register."""
STORED: Mapping[int, tuple[str, str]] = {PAIR: ("int16", "int16"), QUAD: ("uint8", "int8")}
"""The types of the left and of the right operands, by the length."""
LARGEST = 2**15
"""The largest magnitude of a number in pairs; with a sign, for it takes 16 bits."""
BYTE = 255
"""The largest byte."""
SUM = 2**31 - 1
"""The largest magnitude of a sum."""


@dataclass(frozen=True, slots=True)
class LeftBytes:
    """A left operand as bytes: `numbers`, less the `least` of them, are the bytes of which dot
    products are made. What they have too much is the same everywhere, `least` less `zero`, a single
    number or none: as often are the numbers of the right operand taken from the sums."""

    numbers: Expr
    least: int
    zero: Expr | None = None

    @property
    def exact(self) -> bool:
        """Whether bytes are the operand itself."""
        return self.zero is None and self.least == 0


def left_bytes(chain: Chain, e: Expr) -> LeftBytes | None:
    """A whole number as a byte; None where it needs more bits."""
    between, inner = whole_range(chain, e), uncast(e)
    if between is None:
        return None
    if isinstance(inner, Call) and inner.op == "sub":
        numbers, zero = inner.args
        found, single = left_bytes(chain, numbers), whole_range(chain, zero)
        known = found is not None and found.zero is None and not axes(zero)
        if found is not None and known and _within(single, found.least):
            return replace(found, zero=zero)
    if not all(map(math.isfinite, between)):
        return None
    least = min(int(between[0]), 0)
    return LeftBytes(e, least) if max(between[1], 0) - least <= BYTE else None


def _within(found: Interval | None, least: int) -> bool:
    """Whether numbers are bytes, less the `least` of these."""
    return found is not None and least <= found[0] and found[1] <= least + BYTE


def left_element(chain: Chain, roles: Product) -> Expr:
    """An element of the left operand; of one that a map computes for products alone, the value of
    that map, which is never in memory."""
    tensor = roles.left.tensor
    if tensor in chain.inputs or tensor in chain.outputs:
        return roles.left
    made, users = chain.operator(tensor), [o.product for o in chain.readers(tensor)]
    left = all(r is not None and oriented(r).left == roles.left for r in users)
    plain = [i.plain for i in roles.left.indices] == [*made.axes]
    return (
        made.body
        if made.reduce == "none" and made.domain is None and left and plain
        else roles.left
    )


def dot_lengths(
    chain: Chain, buffers: Mapping[str, Buffer], s: Compute, tile: Callable[[str], Ints], most: int
) -> Ints:
    """How long the dot products are of which a statement is computed, for tiles: `most` or less, 0
    where floats are multiplied.

    `tile` gives the extents of an axis' tiles, 1 for a name that is none. Both operands must be
    whole numbers of 16 bits, or of 8, the right one must be loaded, and the sums of a tile must fit
    into 32 bits. What is multiplied at once are neighbours along the last axis of the depth, in
    every tile.
    """
    lengths: Ints = np.zeros(np.shape(tile("")), np.int64)
    found = operand_tiles(s) if s.domain is None else None
    if found is None or not found[0].columns or buffers[found[2]].tensor not in chain.inputs:
        return lengths
    if not _kept_whole(chain, s):
        return lengths
    depth = math.prod((tile(a) for a in found[0].depth), start=tile(""))
    for length in (PAIR, QUAD):
        largest = _largest(chain, found[0], buffers[found[2]].tensor, length)
        if length <= most and largest is not None:
            fits = _neighbours(chain, found[0], tile, length) & (depth * largest <= SUM)
            lengths = np.where(fits, length, lengths)
    return lengths


def _largest(chain: Chain, roles: Product, right: str, length: int) -> int | None:
    """The largest magnitude of a product, or of what is taken from it, of operands that are stored
    for dot products of a length; None where these cannot hold them."""
    both = [whole_range(chain, Read(t, ())) for t in (roles.left.tensor, right)]
    if not all(map(_fits_pairs, both)):
        return None
    if length == PAIR:
        return math.prod(map(_magnitude, both))
    fits = both[1] is not None and both[1][0] >= -128 and both[1][1] <= 127
    return BYTE * 128 if fits and left_bytes(chain, left_element(chain, roles)) else None


def _fits_pairs(found: Interval | None) -> bool:
    return found is not None and found[0] >= -LARGEST and found[1] < LARGEST


def _magnitude(found: Interval | None) -> int:
    assert found is not None
    return int(max(-found[0], found[1]))


def _neighbours(
    chain: Chain, roles: Product, tile: Callable[[str], Ints], length: int
) -> NDArray[np.bool_]:
    """Whether tiles have whole dot products along the last axis of the depth: they are multiples of
    the length, or all of the only axis, past whose end is zero."""
    *others, last = roles.depth
    extent, tiles = chain.extent(last), tile(last)
    if others and (isinstance(extent, Bounds) or extent % length):
        return np.zeros(np.shape(tiles), bool)
    result: NDArray[np.bool_] = tiles % length == 0
    if not others and not isinstance(extent, Bounds):
        result = result | (tiles >= extent)
    return result


def lies_in_bytes(chain: Chain, roles: Product) -> bool:
    """Whether the left operand is read where it lies: it is bytes in memory, and four neighbours
    along the depth are neighbours there."""
    found, (*_, last) = left_bytes(chain, left_element(chain, roles)), roles.depth
    inner = uncast(found.numbers) if found is not None else None
    if found is None or found.least or not isinstance(inner, Read):
        return False
    if inner.tensor not in chain.inputs or chain.tensor(inner.tensor).dtype != "uint8":
        return False
    extent, along = chain.extent(last), [i for i in inner.indices if last in i.axes]
    if isinstance(extent, Bounds) or extent % QUAD or len(along) != 1 or along[0].plain != last:
        return False
    return strides_of(chain, inner.tensor)[inner.indices.index(along[0])] == 1


def _kept_whole(chain: Chain, s: Compute) -> bool:
    """Whether the operands are multiplied as they are: no cast rounds them."""
    assert isinstance(s.operator.body, Call)
    return all(whole_range(chain, a) is not None for a in s.operator.body.args)


def longest(device: Device) -> int:
    """The longest dot products that a CPU has an instruction for; 0 where it has none."""
    length = QUAD if device.vnni else PAIR
    return length if device.bits in INSTRUCTIONS[length] else 0


def dot_products(
    plan: Plan, sizes: Sizes, most: int
) -> Iterator[tuple[Compute, tuple[Loop, ...], Product, str, Ints]]:
    """The products of a plan, the loops around them, the roles of their axes, the tile that is the
    left operand, and how long the dot products of the candidates are."""
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    for s, outer in statements(body):
        found = operand_tiles(s) if isinstance(s, Compute) else None
        if isinstance(s, Compute) and found is not None:
            lengths = dot_lengths(plan.program.chain, named, s, sizes.of, most)
            yield s, outer, found[0], found[1], lengths


def multiplies_whole(plan: Plan, tiles: Ints, device: Device) -> NDArray[np.bool_]:
    """Which candidates have a product that may be computed of dot products."""
    some = np.zeros(len(tiles), bool)
    if any(plan.program.chain.tensor(n).dtype in NARROW for n in plan.program.chain.inputs):
        for *_, lengths in dot_products(plan, sizes_of(plan, tiles), longest(device)):
            some |= lengths > 0
    return some
