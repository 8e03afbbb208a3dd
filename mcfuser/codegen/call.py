"""Calls, in a module, of functions that are written as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import ir, relax

from mcfuser.codegen.script import prim_func

MadeCall = Callable[[relax.BlockBuilder, relax.Call], relax.Expr | None]
"""What stands for a call; None where it stays."""
MadeNamedCall = Callable[[relax.BlockBuilder, relax.Call, str], relax.Expr | None]
"""The same of a call of a function that has a name."""


def called(
    builder: relax.BlockBuilder,
    text: str,
    name: str,
    arguments: Sequence[relax.Expr],
    ty: ir.Type | Sequence[ir.Type],
) -> relax.Expr:
    """A call of a function that is written as text, whose result is of a type, or whose
    results are of several. Nothing is fused with it, and no schedule is looked for."""
    function = prim_func(text).without_attr("global_symbol")
    function = function.with_attrs(
        {"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True}
    )
    return relax.call_tir(builder.add_func(function, name), list(arguments), ty)


def with_calls(module: tvm.IRModule, made: MadeCall) -> tvm.IRModule:
    """The module with what is `made` of each call in its Relax functions."""
    mutator = _Calls(module, made)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    return mutator.builder_.finalize()


def with_named_calls(module: tvm.IRModule, made: MadeNamedCall) -> tvm.IRModule:
    """The module with what is `made` of each call of a function that stands, by its name, for what
    a code generator has to write."""

    def replace(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
        what = call.args[0] if call.args else None
        if not isinstance(what, relax.ExternFunc):
            return None
        return made(builder, call, str(what.global_symbol))

    return with_calls(module, replace)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, made: MadeCall) -> None:
        super().__init__(module)
        self.made = made

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        found = self.made(self.builder_, call)
        return call if found is None else found
