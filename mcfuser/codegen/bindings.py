"""Relax functions with other bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tvm import relax


def with_bindings(
    function: relax.Function, made: Callable[[relax.BindingBlock], Iterable[relax.Binding]]
) -> relax.Function:
    """The function whose blocks have the bindings that are made of each, in the same order."""
    blocks = [type(block)(list(made(block))) for block in function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def beginning_with(
    function: relax.Function, bindings: Sequence[relax.Binding], parameters: Sequence[relax.Var]
) -> relax.Function:
    """The function of these parameters, which has other bindings before its own."""
    first = relax.BindingBlock([*bindings])
    body = relax.SeqExpr([first, *function.body.blocks], function.body.body)
    return relax.Function([*parameters], body, function.ret_ty, function.is_pure, function.attrs)
