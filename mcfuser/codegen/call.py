"""Calls, in a module, of functions that are written as text."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax

from mcfuser.codegen.script import prim_func


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
