"""Reductions that no kernel of a chain computes, of integers and bools above all, on a GPU.

TVM's schedules give each result one thread where it is a maximum or a product, and also where there
is a single result: `any(isinf(x))`, which a half-precision T5 asks twice a layer, took 2.8 ms each
time (H200, 2026-11-25; 160 x 512 elements). Here each result has the threads of a block, and
several blocks where there are few results and many elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.dlight.base import try_inline

THREADS = 1024
"""The most threads of a block."""
EACH = 16
"""Elements that a thread should have at least, before another block takes some."""
BLOCKS = 128
"""Blocks of all results together that are enough."""
SHORT = 32
"""Elements of a result that one thread takes as fast as several."""
RESULTS = 1 << 14
"""Results that keep a device busy with a thread for each."""


def one_result(function: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> Any:
    """`in_blocks` for a reduction to a single result; None for any other function."""
    return _scheduled(function, 1)


def in_blocks(function: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> Any:
    """A schedule in which threads share the elements of a result; None where the function is not
    one reduction with elementwise work around it, or has enough results or few elements of each."""
    return _scheduled(function, RESULTS)


def _scheduled(function: tirx.PrimFunc, most: int) -> s_tir.Schedule | None:
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    blocks = try_inline(schedule, blocks) if blocks is not None else None
    if not blocks or not all(isinstance(e, int) for b in blocks for e in b.dom()):
        return None
    reduces = [b for b in blocks if b.is_reduction()]
    if len(reduces) != 1 or blocks[0] is not reduces[0]:
        return None
    if any(set(b.dom_kind()) - {"S"} for b in blocks[1:]):
        return None
    (block,) = reduces
    results, elements = (_extent(block, kind) for kind in "SR")
    if set(block.dom_kind()) - {"S", "R"} or results > most or elements < SHORT:
        return None
    _share(schedule, block, results, elements)
    for after in blocks[1:]:
        _bind(schedule, after)
    return schedule


def _extent(block: SBlockInfo, kind: str) -> int:
    """The iterations of a block over its spatial ("S") axes, or over those it reduces ("R")."""
    extents: Sequence[int] = block.dom()
    return math.prod(e for e, k in zip(extents, block.dom_kind(), strict=True) if k == kind)


def _share(schedule: s_tir.Schedule, block: SBlockInfo, results: int, elements: int) -> None:
    """Binds a reduction to the threads of blocks, in parts that another one combines where that
    keeps more multiprocessors busy."""
    threads = min(THREADS, 1 << (elements - 1).bit_length())
    parts = _power(min(BLOCKS // results, elements // (threads * EACH)))
    pair = len(schedule.get(block.block_rv).writes) > 1
    reduced = _fused(schedule, block)
    if parts == 1 or (results == 1 and pair):  # TVM's rfactor stumbles over a single pair
        schedule.split(reduced, factors=[None, threads])
    else:
        part, _, _ = schedule.split(reduced, factors=[parts, None, threads])
        partial = schedule.rfactor(part, factor_axis=0)
        *across, _, along = schedule.get_loops(partial)
        schedule.bind(schedule.fuse(*across), "blockIdx.x")
        schedule.bind(along, "threadIdx.x")
    first, *_, along = schedule.get_loops(block.block_rv)
    at = first if "S" in block.dom_kind() else schedule.add_unit_loop(first)
    schedule.bind(at, "blockIdx.x")
    schedule.bind(along, "threadIdx.x")


def _power(number: int) -> int:
    """The largest power of two up to a number, and at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def _fused(schedule: s_tir.Schedule, block: SBlockInfo) -> Any:
    """The loop over the elements of a result, inside one over all results if there are several."""
    kinds = block.dom_kind()
    loops = schedule.get_loops(block.block_rv)
    across = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    inside = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    schedule.reorder(*across, *inside)
    if across:
        schedule.fuse(*across)
    return schedule.fuse(*inside)


def _bind(schedule: s_tir.Schedule, block: SBlockInfo) -> None:
    """Gives each element of a block a thread."""
    loops = schedule.get_loops(block.block_rv)
    fused = schedule.fuse(*loops) if loops else schedule.add_unit_loop(block.block_rv)
    across, along = schedule.split(fused, factors=[None, THREADS])
    schedule.bind(across, "blockIdx.x")
    schedule.bind(along, "threadIdx.x")
