"""A roofline model by waves of blocks: flops and traffic of a block, and how blocks queue.

On a GPU a block's loads overlap its arithmetic, so the slower of both counts. On a CPU nothing
overlaps between passes over a tile: every statement reads and writes its tiles in the core's
cache, and a loop that splits a reduction pays for the partial result each iteration.
"""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Stride, product
from mcfuser.device import Device
from mcfuser.expr import Call, Cast, Read, reads, walk
from mcfuser.lowering.tensorir.box import box_elements
from mcfuser.lowering.tensorir.unpacked import unpacked
from mcfuser.model.analytical import storage
from mcfuser.model.matrix import matrix_seconds
from mcfuser.model.paired import paired_seconds
from mcfuser.model.winograd import winograd_seconds
from mcfuser.space.plan import (
    Floats,
    Ints,
    Plan,
    Sizes,
    blocks,
    elements,
    repeats,
    shared,
    sizes_of,
    traffic,
    work,
)
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Init,
    Load,
    Repair,
    SaveOld,
    Store,
    StorePartial,
    statements,
)

OVERLAPPED_LAUNCH = 3e-6
"""Seconds from the call of a GPU's kernel to its first block. Combining the parts of a split loop
is a second launch."""
SEQUENTIAL_LAUNCH = 1.5e-6
"""Seconds from the call of a CPU's kernel to its first block: TVM's thread pool."""
VISIT = 5e-8
"""Seconds of a CPU core for one visit of a statement: loop heads, addresses, short vectors."""
GATHER = 4.0
"""How much slower a tile is copied when its rows become columns (packing a right operand)."""
NEAR = 0.25
"""The part of a copy's time from memory that one into a box takes, which stays in a core's cache:
of windows of 3 x 3 in steps of two over 64 x 56 x 56, to 128 channels, so predicted were 830 us and
measured 783 (an EPYC with AVX2, 2026-11-26); by the time from memory 1,034 were."""


def overlapped(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Seconds for each row of `tiles` [candidates, axes] where a block's loads overlap its
    arithmetic: the slower of both counts."""
    t_mem = traffic(plan, tiles) / blocks(plan, tiles) / (device.bandwidth / device.units)
    t_block = np.maximum(_arithmetic(plan, tiles, device), t_mem)
    return _waves(plan, tiles, device) * t_block + OVERLAPPED_LAUNCH * _launches(plan)


def sequential(
    plan: Plan, tiles: Ints, device: Device, matrix: NDArray[np.bool_] | None = None,
    winograd: Ints | None = None, paired: NDArray[np.bool_] | None = None,
) -> Floats:  # fmt: skip
    """Seconds for each row of `tiles` [candidates, axes] where the passes over a block's tiles
    follow each other: arithmetic and cache traffic add up. `matrix` [candidates] tells which have
    the device's matrix unit compute products, `winograd` how many results Winograd's algorithm
    computes together along each axis of a picture, 0 where it computes none, and `paired` which
    multiply small whole numbers in pairs."""
    t_cache = touched(plan, tiles, device)
    if matrix is not None and matrix.any():
        t_cache = t_cache + np.where(matrix, matrix_seconds(plan, tiles, device), 0.0)
    if paired is not None and paired.any():
        t_cache = t_cache + np.where(paired, paired_seconds(plan, tiles, device), 0.0)
    for out in (int(v) for v in np.unique(winograd) if v) if winograd is not None else ():
        seconds = winograd_seconds(plan, tiles, device, out)
        t_cache = t_cache + np.where(winograd == out, seconds, 0.0)
    t_cache = t_cache / blocks(plan, tiles)
    t_block = _arithmetic(plan, tiles, device) + t_cache
    return _waves(plan, tiles, device) * t_block + SEQUENTIAL_LAUNCH * _launches(plan)


def _arithmetic(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Seconds of one block's flops on one unit."""
    peak = device.throughput(storage(plan)) / device.units
    result: Floats = work(plan, tiles) / blocks(plan, tiles) / peak
    return result


def _waves(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """How often every unit gets a block."""
    result: Floats = np.ceil(blocks(plan, tiles) / device.units)
    return result


def _launches(plan: Plan) -> int:
    return 2 if plan.split is not None else 1


def touched(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Core seconds that all blocks spend on passes over tiles in cache, without the reads of
    products' operands."""
    sizes = sizes_of(plan, tiles)
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    registers = unpacked(plan.program.chain, named, body, sizes.of)
    total = np.zeros(len(tiles))
    for s, outer in statements(body):
        around = [loop.axis for loop in outer]

        def moved(name: str, around: list[str] = around) -> Floats:
            buffer = named[name]
            return BYTES[buffer.dtype] * elements(sizes, buffer, around)

        count = repeats(sizes, outer)
        nbytes = np.zeros(len(tiles))
        if isinstance(s, Load):
            packed, boxed = _packed(plan, sizes, named[s.buffer]), _boxed(plan, sizes, s, around)
            nbytes = GATHER * moved(s.buffer) * packed + boxed
            count = count * (packed | (boxed > 0))
        elif isinstance(s, Compute):
            made = registers.get(s.buffer, np.zeros(1, bool))
            total = total + np.where(made, count * _operations(s, sizes, device), 0.0)
            count = count * ~made
            nbytes = 2 * moved(s.buffer)
            if product(s.operator) is None:
                nbytes = nbytes + sum((moved(r.tensor) for r in reads(s.body)), np.zeros(1))
        elif isinstance(s, Repair):
            nbytes = 2 * moved(s.buffer)
        elif isinstance(s, (Init, Store, StorePartial)):
            nbytes = moved(s.buffer)
        elif isinstance(s, Combine):
            nbytes = plan.parts * 3 * sum((moved(n) for n in shared(s)), np.zeros(1))
        elif isinstance(s, SaveOld):
            nbytes = 2 * moved(s.buffer)
        else:
            assert_never(s)
        total += count * (nbytes / device.bandwidth + VISIT)
    return total


def _operations(s: Compute, sizes: Sizes, device: Device) -> Floats:
    """Core seconds of what a map of constants does in registers for one tile, beside its flops
    (`work`): predicted were 1,002 us so and measured 825, of one row times 4096 x 4096 weights of
    4 bits (an EPYC with AVX2, 2026-11-26); the flops alone make half of it."""
    steps = sum(isinstance(n, (Call, Cast)) for n in walk(s.body))
    count = math.prod((sizes.of(a) for a in s.operator.axes), start=sizes.one)
    result: Floats = steps * count / (device.throughput("float32") / device.units)
    return result


def _boxed(plan: Plan, sizes: Sizes, s: Load, around: list[str]) -> Floats:
    """Bytes that are read and written where a tile is copied with the padding around it, as many of
    memory as take the same time."""
    chain = plan.program.chain
    tensor = chain.tensor(s.read.tensor)
    if not tensor.padding:
        return np.zeros(1)

    def tile(a: str) -> Ints:
        return sizes.of(a) if a in around else np.asarray(chain.size(a))

    nbytes = NEAR * 2.0 * BYTES[tensor.dtype] * box_elements(chain, s.read, tile)
    return np.asarray(nbytes, np.float64)


def _packed(plan: Plan, sizes: Sizes, buffer: Buffer) -> NDArray[np.bool_]:
    """Which candidates pack a tile: the right operand of a product whose columns are not
    contiguous. Where it is contiguous along its depth and the product has one row, it is read
    without packing."""
    chain = plan.program.chain
    tensor = chain.tensor(buffer.tensor)
    no = np.zeros(len(sizes.one), bool)
    for o in chain.operators if not tensor.constant else ():
        roles = product(o)
        if roles is None or roles.right.tensor != buffer.tensor or not roles.columns:
            continue
        along = _contiguous(roles.right, tensor.strides)
        if along in roles.columns:
            return no
        rows = math.prod((sizes.of(a) for a in roles.rows), start=sizes.one)
        return ~no if along not in roles.depth else rows > 1
    return no


def _contiguous(read: Read, strides: tuple[Stride, ...] | None) -> str | None:
    """The axis along which the tensor is contiguous."""
    if strides is None:
        return read.indices[-1].plain
    return next((i.plain for i, s in zip(read.indices, strides, strict=True) if s == 1), None)
