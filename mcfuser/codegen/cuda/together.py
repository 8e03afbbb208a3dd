"""Small functions that follow each other and need nothing of each other share one launch.

A decoding step's queries, keys and values are a few thousand elements each, and a launch takes a
microsecond, whatever it computes. Each function keeps its blocks of threads, one after the other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, tirx

from mcfuser.codegen.bindings import with_bindings
from mcfuser.codegen.cuda.places import SCHEDULED

SMALL = 1 << 14
"""The most threads of a function that shares a launch: more keep many multiprocessors busy."""
MOST = 16
"""The most functions of a launch."""


@dataclass(frozen=True)
class _Grid:
    """A function of one grid, whose loops are bound to `blockIdx.x` and `threadIdx.x`."""

    function: tirx.PrimFunc
    blocks: tirx.For
    threads: tirx.For

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.blocks.extent), int(self.threads.extent)


@dataclass(frozen=True)
class _Bound:
    """A binding of a call, its function's name in the module, and its grid."""

    binding: relax.VarBinding
    callee: tvm.ir.GlobalVar
    grid: _Grid

    @property
    def call(self) -> relax.Call:
        return self.binding.value


def small_together() -> tvm.transform.Pass:
    """A pass over a module with scheduled functions: calls of small ones that stand side by side
    become one call."""

    def merge(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        grids = {n: g for n, f in module.functions_items() if (g := _grid(f)) is not None}
        builder = relax.BlockBuilder(module)
        for name, function in module.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                builder.update_func(name, _merged(builder, function, grids))
        return _without_unused(builder.get(), module)

    return tvm.transform.module_pass(merge, opt_level=0, name="SmallTogether")


def _grid(function: tvm.ir.BaseFunc) -> _Grid | None:
    """The grid of a small function that computes one element after the other, each on its own; None
    for any other function."""
    if not isinstance(function, tirx.PrimFunc) or SCHEDULED not in (function.attrs or {}):
        return None
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize) or len(root.block.alloc_buffers):
        return None
    loops = list[tirx.For]()
    inner = root.block.body
    while isinstance(inner, tirx.For):
        loops.append(inner)
        inner = inner.body
    tags = [None if f.thread_binding is None else f.thread_binding.thread_tag for f in loops]
    if tags[:2] != ["blockIdx.x", "threadIdx.x"] or any(tags[2:]):
        return None
    if not isinstance(inner, s_tir.SBlockRealize) or not _elementwise(inner.block):
        return None
    if not all(isinstance(f.extent, tirx.IntImm) for f in loops):
        return None
    made = _Grid(function, *loops[:2])
    return made if math.prod(made.shape) <= SMALL else None


def _elementwise(block: s_tir.SBlock) -> bool:
    """Whether a block stores one element at a time, and keeps nothing."""
    spatial = all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)
    kept = block.init is not None or len(block.alloc_buffers) or len(block.match_buffers)
    return spatial and not kept and isinstance(block.body, tirx.BufferStore)


def _merged(
    builder: relax.BlockBuilder,
    function: relax.Function,
    grids: Mapping[tvm.ir.GlobalVar, _Grid],
) -> relax.Function:
    """The function with one call in the place of each run of small ones."""

    def merged(block: relax.BindingBlock) -> Iterator[relax.Binding]:
        for run in _runs(block.bindings, grids):
            if len(run) > 1:
                flowing = isinstance(block, relax.DataflowBlock)
                yield from _one_call(builder, [b for b in run if isinstance(b, _Bound)], flowing)
            else:
                yield from (b.binding if isinstance(b, _Bound) else b for b in run)

    return with_bindings(function, merged)


def _runs(
    bindings: Sequence[relax.Binding], grids: Mapping[tvm.ir.GlobalVar, _Grid]
) -> Iterator[list[relax.Binding | _Bound]]:
    """The bindings in order; those that may share a launch together, any other one alone."""
    run = list[_Bound]()
    for binding in bindings:
        bound = _bound(binding, grids)
        if run and (bound is None or len(run) == MOST or not _joins(run, bound)):
            yield [*run]
            run = []
        if bound is None:
            yield [binding]
        else:
            run.append(bound)
    if run:
        yield [*run]


def _bound(binding: relax.Binding, grids: Mapping[tvm.ir.GlobalVar, _Grid]) -> _Bound | None:
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name != "relax.call_tir" or len(value.args) != 2:
        return None
    (result,), name = value.ty_args, value.args[0]
    if name not in grids or not isinstance(result, relax.TensorType):
        return None
    return _Bound(binding, name, grids[name])


def _joins(run: Sequence[_Bound], bound: _Bound) -> bool:
    """Whether a call reads nothing of a run's, and has blocks of as many threads."""
    first, threads = run[0].grid, bound.grid.threads
    if first.shape[1] != bound.grid.shape[1]:
        return False
    if first.threads.loop_var.ty != threads.loop_var.ty:
        return False
    made = {b.binding.var for b in run}
    return made.isdisjoint(relax.analysis.free_vars(bound.call))


def _one_call(
    builder: relax.BlockBuilder, run: Sequence[_Bound], flowing: bool
) -> Iterator[relax.Binding]:
    """The call of one function for all of a run, and its results under their old names."""
    name = f"{str(run[0].callee.name_hint)[:80]}_and_{len(run) - 1}_beside"
    callee = builder.add_func(_function([b.grid for b in run]), name)
    arguments = [a for b in run for a in b.call.args[1].fields]
    types = [b.call.ty_args[0] for b in run]
    call = builder.normalize(relax.call_tir(callee, relax.Tuple(arguments), types))
    variable = relax.DataflowVar if flowing else relax.Var
    together = variable(f"{run[0].binding.var.name}_beside", call.ty)
    yield relax.VarBinding(together, call)
    for i, b in enumerate(run):
        part = builder.normalize(relax.TupleGetItem(together, i))
        yield relax.VarBinding(b.binding.var, part)


def _function(grids: Sequence[_Grid]) -> tirx.PrimFunc:
    """A function whose first blocks are those of the first grid, the next those of the second, and
    so on. It takes the inputs of all, then their results."""
    copies = [_grid(s_tir.renew_defs(g.function)) for g in grids]
    made = [g for g in copies if g is not None]
    blocks, threads = made[0].blocks, made[0].threads
    b = tvm.ir.Var("block", blocks.loop_var.ty)
    t = tvm.ir.Var("thread", threads.loop_var.ty)
    end, body = sum(g.shape[0] for g in made), None
    for g in reversed(made):
        first = end - g.shape[0]
        own = _at(g.blocks, b - first, _at(g.threads, t, g.threads.body))
        body = own if body is None else tirx.IfThenElse(b < end, own, body)
        end = first
    inside = _tied(threads, t, threads.extent, body)
    whole = _tied(blocks, b, sum(g.shape[0] for g in made), inside)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", whole))
    inputs = [p for g in made for p in g.function.params[:-1]]
    results = [g.function.params[-1] for g in made]
    return tirx.PrimFunc([*inputs, *results], root, attrs=made[0].function.attrs)


def _at(loop: tirx.For, position: tirx.Expr, body: tirx.Stmt) -> tirx.For:
    """A loop's body at one position."""
    return tirx.For(loop.loop_var, position, 1, tirx.ForKind.SERIAL, body)


def _tied(loop: tirx.For, v: tvm.ir.Var, extent: tirx.Expr | int, body: tirx.Stmt) -> tirx.For:
    """A loop over `v` that is bound as another one is."""
    tag = loop.thread_binding.thread_tag
    axis = tirx.IterVar(None, tvm.ir.Var(tag, v.ty), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(v, 0, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _without_unused(made: tvm.IRModule, before: tvm.IRModule) -> tvm.IRModule:
    """The module without the functions that were called before, and are no more."""
    gone = _called(before) - _called(made)
    kept = {n: f for n, f in made.functions_items() if str(n.name_hint) not in gone}
    return tvm.IRModule(kept, attrs=made.attrs, global_infos=made.global_infos)


def _called(module: tvm.IRModule) -> set[str]:
    """The names of the functions that the Relax functions of a module refer to."""
    found = set[str]()

    def see(e: relax.Expr) -> None:
        if isinstance(e, tvm.ir.GlobalVar):
            found.add(str(e.name_hint))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, see)
    return found
