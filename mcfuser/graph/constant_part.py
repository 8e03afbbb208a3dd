"""Computes the values of a Relax module that depend on no parameter.

TVM's own pass writes a kernel for every operator of the module before it knows whether its operands
are constant: half a millisecond for each, 10 s for an unrolled recurrence. It is given these values
alone.
"""

from __future__ import annotations

import tvm
from tvm import relax

from mcfuser.graph.dataflow import extents, is_fixed, with_blocks

_SHAPE_OF = tvm.ir.Op.get("relax.shape_of")


def with_constants(module: tvm.IRModule) -> tvm.IRModule:
    """The module in which every value of `main` that depends on no parameter is a constant, where
    TVM can compute it."""
    main = module["main"]
    bindings = [b for block in main.body.blocks for b in block.bindings]
    if any(isinstance(getattr(b, "value", None), relax.If) for b in bindings):
        return relax.transform.FoldConstant()(module)  # a branch has constants of its own
    fixed: dict[relax.Var, relax.VarBinding] = {}
    for binding in bindings:
        if not isinstance(binding, relax.VarBinding):
            continue
        value = _extents(binding.value) or binding.value
        if is_fixed(value, fixed):
            fixed[binding.var] = relax.VarBinding(binding.var, value)
    if not fixed:
        return module
    known = _computed(list(fixed.values()))
    blocks = [
        type(block)([
            relax.VarBinding(b.var, known[b.var]) if b.var in known else b for b in block.bindings
        ])
        for block in main.body.blocks
    ]  # fmt: skip
    made = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    made["main"] = with_blocks(main, blocks)
    return made


def _extents(value: relax.Expr) -> relax.ShapeExpr | None:
    """What a call asks for that asks for the known shape of a value; None for anything else."""
    if not isinstance(value, relax.Call) or value.op != _SHAPE_OF:
        return None
    known = extents(value.args[0])
    return None if known is None else relax.ShapeExpr(known)


def _computed(bindings: list[relax.VarBinding]) -> dict[relax.Var, relax.Expr]:
    """The constants that TVM computes for some of these bindings, which read one another alone."""
    names = [b.var for b in bindings]
    result = relax.Var("result", relax.TupleType([v.ty for v in names]))
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, relax.Tuple(names))])
    alone = relax.Function([], relax.SeqExpr([block], result), result.ty)
    folded = relax.transform.FoldConstant()(tvm.IRModule({"main": alone}))
    *_, last = (b for block in folded["main"].body.blocks for b in block.bindings)
    return {
        name: value
        for name, value in zip(names, last.value.fields, strict=True)
        if isinstance(value, (tvm.ir.GenericConst, relax.ShapeExpr))
    }
