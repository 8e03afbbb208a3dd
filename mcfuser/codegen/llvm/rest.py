"""What no kernel computes, on a CPU: quick scalar functions, and loops spread over the cores."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import relax, s_tir, te, tirx, topi
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from mcfuser.codegen.llvm.concatenate import concatenate
from mcfuser.codegen.llvm.pad import pad
from mcfuser.codegen.llvm.regions import regions
from mcfuser.codegen.llvm.resize import resize
from mcfuser.codegen.llvm.sample import sample
from mcfuser.codegen.llvm.scan import cumulate
from mcfuser.codegen.llvm.scatter import scatter
from mcfuser.codegen.llvm.top import top

_SMALL = 1 << 15  # elements visited; below, waking the other cores costs more than it saves

_LANES = 16  # partial sums of a reduction, so that a vector of them is added at once; TVM loses the
# condition of a last vector that is not full (33,333 numbers had a sum of 3e18)

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def legalize() -> tvm.transform.Pass:
    """Relax's operators as loops; exp, erf and tanh by polynomials, which become vector code."""
    return relax.transform.LegalizeOps({
        "relax.exp": _float32(lambda x, _: topi.fast_exp(x)),
        "relax.erf": _float32(lambda x, _: topi.fast_erf(x)),
        "relax.tanh": _float32(lambda x, _: topi.fast_tanh(x)),
        "relax.nn.softmax": _float32(lambda x, call: topi.nn.fast_softmax(x, call.attrs.axis)),
        "relax.nn.gelu": _float32(lambda x, _: _gelu(x)),
        "relax.nn.pad": _ours(pad),
        "relax.concat": _ours(concatenate),
        "relax.image.resize2d": _ours(resize),
        "relax.image.grid_sample": _ours(sample),
        "relax.cumsum": _ours(cumulate),
        "relax.scatter_nd": _ours(scatter),
        "relax.topk": _ours(top),
        "relax.vision.roi_align": _ours(regions),
    })  # fmt: skip


def _float32(compute: Callable[[te.Tensor, relax.Call], te.Tensor]) -> Legalization:
    """`compute` for float32, and TVM's own legalization for any other dtype or unknown shape."""

    def apply(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,) = call.args
        if str(x.ty.dtype) != "float32" or not isinstance(x.ty.shape, relax.ShapeExpr):
            return _own(builder, call)
        name = call.op.name.rpartition(".")[2]
        return builder.call_te(lambda t: compute(t, call), x, primfunc_name_hint=name)

    return apply


def _ours(
    made: Callable[[relax.BlockBuilder, relax.Call], relax.Expr | None],
) -> Legalization:
    """What is `made` of a call, and TVM's own legalization where nothing is."""

    def apply(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        found = made(builder, call)
        return _own(builder, call) if found is None else found

    return apply


def _own(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's own legalization; a call that a later pass replaces stays."""
    legalize = call.op.get_attr("FLegalize")
    return call if legalize is None else legalize(builder, call)


def _gelu(x: te.Tensor) -> te.Tensor:
    def number(value: float) -> tirx.FloatImm:
        return tirx.const(value, "float32")

    erf = topi.fast_erf(topi.multiply(x, number(math.sqrt(0.5))))
    return topi.multiply(topi.multiply(x, number(0.5)), topi.add(erf, number(1.0)))


@tvm.transform.module_pass(opt_level=0, name="mcfuser.Spread")  # type: ignore[untyped-decorator]
def spread(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Runs the outer loops of every function that has no schedule yet on all cores."""
    spread_over = {
        name: parallel(function)
        for name, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and not function.attrs.get("tirx.is_scheduled", 0)
    }
    module = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for name, function in spread_over.items():
        module.update_func(name, function)
    return module


def parallel(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its rows spread over the cores, or as it is where that does not pay.

    Rows are the outer dimensions that every block keeps: a normalization's reductions run in the
    same row as the map after them. Where the blocks share none, each is spread alone.
    """
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if not blocks or not all(set(b.dom_kind()) <= {"S", "R"} for b in blocks):
        return function
    if not all(isinstance(extent, int) for b in blocks for extent in b.dom()):
        return function
    if max(math.prod(b.dom()) for b in blocks) < _SMALL:
        return function
    try:
        _rows(schedule, blocks)
    except (s_tir.ScheduleError, tvm.error.InternalError):  # rfactor checks some reductions so
        schedule = s_tir.Schedule(function)
        blocks = normalize_prim_func(schedule)
        for block in blocks:
            if math.prod(block.dom()) >= _SMALL:
                _spread(schedule, block, _leading(block))
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def _leading(block: SBlockInfo) -> int:
    """How many outer loops keep their axis; a map's innermost is left for vectors."""
    kinds = block.dom_kind()
    count = len(kinds) - len(kinds.lstrip("S"))
    return count - 1 if count == len(kinds) and count > 1 else count


def _spread(schedule: s_tir.Schedule, block: SBlockInfo, count: int) -> s_tir.schedule.LoopRV:
    loops = schedule.get_loops(block.block_rv)[:count]
    if not loops:
        return None
    outer = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    schedule.parallel(outer)
    return outer


def _rows(schedule: s_tir.Schedule, blocks: list[SBlockInfo]) -> None:
    """One parallel loop over the rows that all blocks share, everything else inside it."""
    shared = min(_leading(b) for b in blocks)
    extents = [b.dom()[:shared] for b in blocks]
    if not shared or any(e != extents[0] for e in extents):
        raise s_tir.ScheduleError("the blocks share no rows")
    parts: list[s_tir.schedule.SBlockRV] = []
    lanes = []
    for block in blocks:
        partial = _laned(schedule, block)
        lanes += [partial] if partial is not None else []
        parts += [partial, block.block_rv] if partial is not None else [block.block_rv]
    outer = _spread(schedule, blocks[-1], shared)
    for part in reversed(parts[:-1]):
        schedule.compute_at(part, outer, preserve_unit_loops=True)
    for part in lanes:
        _, lane, *_, chunk = schedule.get_loops(part)
        schedule.reorder(chunk, lane)
        schedule.vectorize(lane)


def _laned(schedule: s_tir.Schedule, block: SBlockInfo) -> s_tir.schedule.SBlockRV | None:
    """Splits a sum along one axis into one for each lane of a vector: a new block before it."""
    kinds, extents = block.dom_kind(), block.dom()
    if not kinds.endswith("SR") or extents[-1] % _LANES or extents[-1] < 4 * _LANES:
        return None
    inner = schedule.get_loops(block.block_rv)[-1]
    _, lane = schedule.split(inner, factors=[None, _LANES])
    return schedule.rfactor(lane, factor_axis=-1)
