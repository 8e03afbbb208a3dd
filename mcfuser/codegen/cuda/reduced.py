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
COLUMNS = 256
"""Results whose columns of elements threads share before TVM's rule is asked. For 7 columns of
33,333 numbers it takes 92 us where this takes 6; for 512 columns both take about as long (H200,
2026-11-25)."""
RESULTS = 1 << 14
"""Results that keep a device busy with a thread for each."""


def few_results(function: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> Any:
    """`in_blocks` for a reduction to a single result, or to few whose elements lie apart, as those
    of columns do; None for any other function."""
    return _scheduled(function, COLUMNS, apart=True)


def in_blocks(function: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> Any:
    """A schedule in which threads share the elements of a result; None where the function is not
    one reduction with elementwise work around it, or has enough results or few elements of each."""
    return _scheduled(function, RESULTS)


def _scheduled(function: tirx.PrimFunc, most: int, apart: bool = False) -> s_tir.Schedule | None:
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
    if apart and results > 1 and not _columns(schedule.get(block.block_rv)):
        return None
    _share(schedule, block, results, elements)
    for after in blocks[1:]:
        _bind(schedule, after)
    return schedule


def _columns(body: s_tir.SBlock) -> bool:
    """Whether elements that lie side by side are of several results."""
    kept = {v.var for v in body.iter_vars if v.iter_type != tirx.IterVar.CommReduce}
    last = [read.region[-1].min for read in body.reads if len(read.region)]
    return any(kept & set(tirx.analysis.undefined_vars(index)) for index in last)


def combined(schedule: s_tir.Schedule) -> bool:
    """Whether TVM has the threads that share a result combine what they found. Where it does not
    know a reduction by its loops, it says nothing, and they write over each other."""
    lowered = s_tir.transform.LowerCrossThreadReduction()(schedule.mod)
    functions = lowered.functions.values()
    return not any(_written_over(f.body, set()) for f in functions)


def _written_over(statement: tirx.Stmt, bound: set[tirx.Var]) -> bool:
    """Whether threads or blocks of threads, which the variables `bound` count, share the elements
    that a block within a statement reduces."""
    match statement:
        case tirx.SeqStmt():
            return any(_written_over(s, bound) for s in statement.seq)
        case tirx.For():
            threads = {statement.loop_var} if statement.thread_binding is not None else set()
            return _written_over(statement.body, bound | threads)
        case s_tir.SBlockRealize():
            inside = _written_over(statement.block.body, bound)
            return inside or bool(bound & _reduced_along(statement))
    return False


def _reduced_along(realize: s_tir.SBlockRealize) -> set[tirx.Var]:
    """The variables of the loops over the elements that a block reduces; none where it does not
    begin with an identity, as TVM's blocks that combine threads do not."""
    if realize.block.init is None:
        return set()
    axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reduced = [value for axis, value in axes if axis.iter_type == tirx.IterVar.CommReduce]
    return {v for value in reduced for v in tirx.analysis.undefined_vars(value)}


def _extent(block: SBlockInfo, kind: str) -> int:
    """The iterations of a block over its spatial ("S") axes, or over those it reduces ("R")."""
    extents: Sequence[int] = block.dom()
    return math.prod(e for e, k in zip(extents, block.dom_kind(), strict=True) if k == kind)


def _share(schedule: s_tir.Schedule, block: SBlockInfo, results: int, elements: int) -> None:
    """Binds a reduction to the threads of blocks, in parts that another one combines where that
    keeps more multiprocessors busy."""
    threads = min(THREADS, _power(elements))
    most = max(1, min(BLOCKS // results, elements // (threads * EACH)))
    # a shorter part would be a condition on its block, beside which TVM combines no threads
    parts = max(n for n in range(1, most + 1) if elements % n == 0)
    pair = len(schedule.get(block.block_rv).writes) > 1
    reduced = _fused(schedule, block)
    if parts > 1 and not (results == 1 and pair):  # TVM's rfactor stumbles over a single pair
        part, _ = schedule.split(reduced, factors=[parts, None])
        partial = schedule.rfactor(part, factor_axis=0)
        *across, inside = schedule.get_loops(partial)
        schedule.bind(schedule.fuse(*across), "blockIdx.x")
        _, along = schedule.split(inside, factors=[None, threads])
        schedule.bind(along, "threadIdx.x")
        threads = _power(parts)
    *across, reduced = schedule.get_loops(block.block_rv)
    at = across[0] if across else schedule.add_unit_loop(reduced)
    schedule.bind(at, "blockIdx.x")
    _, along = schedule.split(reduced, factors=[None, threads])
    schedule.bind(along, "threadIdx.x")


def _power(number: int) -> int:
    """The least power of two from a number on."""
    return 1 << (number - 1).bit_length()


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
