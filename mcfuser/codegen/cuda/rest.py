"""What no kernel computes, on a GPU: TVM's own schedules, but for elements that are moved, which
threads take in vectors, and for bools, which they take one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from mcfuser.codegen.arguments import given_are_checked
from mcfuser.codegen.cuda.beside import beside
from mcfuser.codegen.cuda.places import SCHEDULED
from mcfuser.codegen.cuda.reduced import combined, few_results, in_blocks
from mcfuser.codegen.cuda.together import small_together
from mcfuser.codegen.cuda.workspaces import workspaces_given
from mcfuser.codegen.shapes import ordered_shapes

VECTOR = 16
"""Bytes that a thread moves at a time."""
THREADS = 256
"""Threads of a block."""
LARGE = 1 << 14
"""Elements below which every thread has one: there are too few to keep all multiprocessors busy."""

RULES = (
    dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(),
)  # fmt: skip
"""TVM's rules for schedules on a GPU, in its order; the one that remains takes every function, and
gives each result of a reduction one thread."""
SHARED = 48 << 10
"""Bytes that the threads of a block share whose memory is declared in a kernel. TVM's rule for a
vector by a matrix keeps 16 rows of the matrix, of 960 float32 more than that."""
FUSED = {"relax.FuseOps.max_depth": 64}
"""TVM's configuration of passes, by which so many operators at most become one function. To inline
one into another takes as long as there are others: 500, the slices of a hundred steps put together,
took 44 s, and made a kernel of 330 kB."""
_CHOICE = tvm.ir.Op.get("prim.if_then_else")


def pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """TVM's pipeline for Relax modules on an NVIDIA GPU, with `beside` first, `in_vectors` and
    schedules of reductions among its own, which are `tried`, `bools_one_by_one`, `small_together`,
    `workspaces_given` and `given_are_checked` after them, and `ordered_shapes` last."""
    *legalize, _ = cuda.legalize_passes(target)
    made = dlight.ScheduleRule.from_callable
    vectors, first = made("Vectors")(in_vectors), made("FewResults")(few_results)
    rules = [first, *RULES, made("InBlocks")(in_blocks)]
    in_place = tvm.transform.module_pass(lambda module, _: beside(module), opt_level=0)
    return tvm.transform.Sequential([
        in_place, *cuda.library_dispatch_passes(target), *legalize,
        dlight.ApplyDefaultSchedule(vectors, *map(tried, rules), dlight.gpu.Fallback()),
        bools_one_by_one(), small_together(), workspaces_given(), given_are_checked(),
        *cuda.dataflow_lower_passes(target), *cuda.finalize_passes(target),
        ordered_shapes,
    ])  # fmt: skip


def tried(rule: dlight.ScheduleRule) -> dlight.ScheduleRule:
    """A rule for reductions, which leaves some functions to the next one: those at which it raises
    (TVM's for a vector by a matrix, as it takes a depthwise convolution for, asks for extents that
    are numbers), and those in whose schedule threads share a result without combining what they
    found, or more memory than a block has, or in a way that TVM cannot lower. It is not asked about
    functions that reduce nothing: each rule inlines all blocks before it looks, which takes 44 s
    for a hundred steps that are put together."""

    def schedule(function: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        try:
            made = rule.apply(function, target, tunable) if _reduces(function) else None
            fits = made is not None and combined(made) and shared_bytes(made) <= SHARED
            return made if fits else None
        except Exception:  # a rule raises what it happens to raise, and TVM at what it has made
            return None

    return dlight.ScheduleRule.from_callable(type(rule).__name__)(schedule)


def shared_bytes(schedule: s_tir.Schedule) -> int:
    """The memory that a schedule's threads share, in bytes."""
    passes = s_tir.transform
    compact = tvm.transform.Sequential([
        passes.LowerCrossThreadReduction(), passes.PlanAndUpdateBufferAllocationLocation(),
        passes.ConvertBlocksToOpaque(), passes.CompactBufferAllocation(),
    ])  # fmt: skip
    return sum(_shared(f.body) for f in compact(schedule.mod).functions.values())


def _shared(statement: tirx.Stmt) -> int:
    match statement:
        case tirx.SeqStmt():
            return sum(map(_shared, statement.seq))
        case tirx.For() | tirx.AttrStmt():
            return _shared(statement.body)
        case tirx.IfThenElse():
            branches = (statement.then_case, statement.else_case)
            return sum(_shared(b) for b in branches if b is not None)
        case s_tir.SBlockRealize():
            block = statement.block
            own = (b for b in block.alloc_buffers if str(b.scope()) == "shared")
            return sum(map(_bytes, own)) + _shared(block.body)
    return 0


def _bytes(buffer: tirx.Buffer) -> int:
    outermost = [int(buffer.shape[0]), int(buffer.strides[0])] if buffer.strides else buffer.shape
    return math.prod(map(int, outermost)) * -(-int(tvm.DataType(buffer.dtype).bits) // 8)


def _reduces(function: tirx.PrimFunc) -> bool:
    schedule = s_tir.Schedule(function)
    blocks = map(schedule.get, _blocks(schedule, schedule.get_sblock("root")))
    return any(v.iter_type == tirx.IterVar.CommReduce for b in blocks for v in b.iter_vars)


def in_vectors(
    function: tirx.PrimFunc, target: tvm.target.Target, _: bool
) -> s_tir.Schedule | None:
    """A schedule in which threads move vectors; None where there is no reason for it.

    The function computes nothing: it chooses where an element is read, and along its result's last
    dimension all that it reads is contiguous, as in a concatenation or a slice.
    """
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None or len(blocks) != 1 or set(blocks[0].dom_kind()) != {"S"}:
        return None
    (block,) = blocks
    body = schedule.get(block.block_rv)
    extents, lanes = block.dom(), _lanes(body)
    known = all(isinstance(extent, int) for extent in extents)
    if not known or lanes < 2 or extents[-1] % lanes or math.prod(extents) < LARGE:
        return None
    stored = body.body
    if not isinstance(stored, tirx.BufferStore):  # only where a condition holds
        return None
    if not (_moves(stored.value) and _contiguous(body)):
        return None
    _bound(schedule, block, lanes)
    return schedule


def bools_one_by_one() -> tvm.transform.Pass:
    """A pass over scheduled functions: loops that would read or write vectors of bools are unrolled
    instead.

    A bool fills a byte, but TVM's CUDA code takes two of them for a `ushort2`: it reads four bytes,
    and each of its conditions holds where either of two bools does. More than four it cannot name.
    """

    def single(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        for name, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and SCHEDULED in (function.attrs or {}):
                module.update_func(name, _single_bools(function))
        return module

    return tvm.transform.module_pass(single, opt_level=0, name="BoolsOneByOne")


def _single_bools(function: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(function)
    found = [
        loop
        for block in _blocks(schedule, schedule.get_sblock("root"))
        if "bool" in _types(schedule.get(block))
        for loop in schedule.get_loops(block)
        if schedule.get(loop).kind == tirx.ForKind.VECTORIZED
    ]
    for loop in found:
        schedule.unroll(loop)
    return schedule.mod["main"] if found else function


def _blocks(schedule: s_tir.Schedule, outer: Any) -> Iterator[Any]:
    """The blocks inside a block."""
    for block in schedule.get_child_blocks(outer):
        yield block
        yield from _blocks(schedule, block)


def _types(body: s_tir.SBlock) -> set[str]:
    """The types of the tensors that a block reads or writes."""
    return {str(region.source.dtype) for region in (*body.reads, *body.writes)}


def _lanes(body: s_tir.SBlock) -> int:
    """Elements that a vector has of the widest type that is read or written; 0 where a type fills
    no whole bytes, or vectors of it are wrong (`bools_one_by_one`)."""
    types = _types(body)
    bits = [tvm.DataType(t).bits for t in types]
    return VECTOR * 8 // max(bits) if bits and min(bits) >= 8 and "bool" not in types else 0


def _moves(e: tirx.Expr) -> bool:
    """Whether a value is one that is read, or a choice between such."""
    if isinstance(e, tvm.ir.Call) and e.op == _CHOICE:
        return all(map(_moves, e.args[1:]))
    return isinstance(e, tvm.ir.TensorLoad)


def _contiguous(body: s_tir.SBlock) -> bool:
    """Whether every element that is read lies beside the one for the next element of the result, or
    is the same one."""
    last = body.iter_vars[-1].var
    for read in body.reads:
        steps = [_step(one, last) for one in read.region]
        if steps and not (set(steps[:-1]) <= {0} and steps[-1] in (0, 1)):
            return False
    return True


def _step(read: tvm.ir.Range, last: tirx.Var) -> int | None:
    """By how much the index of a read grows with `last`; None where that is no number, or several
    elements are read."""
    if not (isinstance(read.extent, tirx.IntImm) and int(read.extent) == 1):
        return None
    found = tvm.sym.detect_linear_equation(read.min, [last])
    return int(found[0]) if found and isinstance(found[0], tirx.IntImm) else None


def _bound(schedule: s_tir.Schedule, block: SBlockInfo, lanes: int) -> None:
    *outer, inner = schedule.get_loops(block.block_rv)
    many, few = schedule.split(inner, factors=[None, lanes])
    fused = schedule.fuse(*outer, many) if outer else many
    across, along = schedule.split(fused, factors=[None, THREADS])
    schedule.bind(across, "blockIdx.x")
    schedule.bind(along, "threadIdx.x")
    schedule.vectorize(few)
