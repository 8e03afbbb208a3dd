"""Rewrites of calls: which functions are left, and what becomes of the others."""

from __future__ import annotations

import tvm
from tvm import relax

from mcfuser.graph.matching import called, calls_rewritten


def roots(*names: str) -> relax.Function:
    """x, with operators of one operand applied in order."""
    x, builder = relax.Var("x", relax.TensorType((3, 4), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for name in names:
                value = builder.emit(getattr(relax.op, name)(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()["main"]


def squared(call: relax.Call) -> relax.Expr:
    """Two operators in place of one, with a value between them."""
    return relax.op.sqrt(relax.op.multiply(call.args[0], call.args[0]))


def test_every_call_is_rewritten_once() -> None:
    made = calls_rewritten(roots("abs", "exp", "abs"), {"relax.abs"}, squared)
    assert list(called(made.body)) == [
        f"relax.{n}" for n in ("multiply", "sqrt", "exp", "multiply", "sqrt")
    ]
    relax.analysis.well_formed(tvm.IRModule({"main": made}))


def test_a_rewriter_sees_types() -> None:
    shapes = []

    def seen(call: relax.Call) -> relax.Expr:
        shapes.append([int(n) for n in call.ty.shape])
        return relax.op.reshape(call, [12])

    made = calls_rewritten(roots("exp", "abs", "exp"), {"relax.abs", "relax.exp"}, seen)
    assert shapes == [[3, 4], [12], [12]]
    assert [int(n) for n in made.ret_ty.shape] == [12]


def test_functions_without_such_calls_are_left() -> None:
    given = roots("abs", "exp")
    assert calls_rewritten(given, {"relax.sqrt"}, squared) is given


def test_calls_in_branches_are_found() -> None:
    parameter = relax.Var("c", relax.TensorType((), "bool"))
    x, builder = relax.Var("x", relax.TensorType((3,), "float32")), relax.BlockBuilder()
    with builder.function("main", [parameter, x]):
        branches = []
        for op in (relax.op.exp, relax.op.abs):
            y = relax.Var("y", relax.TensorType((3,), "float32"))
            branches.append(relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, op(x))])], y))
        out = builder.emit(relax.If(parameter, *branches))
        builder.emit_func_output(out)
    assert set(called(builder.get()["main"].body)) == {"relax.exp", "relax.abs"}
