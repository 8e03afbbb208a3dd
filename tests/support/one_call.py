"""Modules of one call of a Relax operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax


def one_call(types: Sequence[relax.TensorType], made: Callable[..., relax.Expr]) -> tvm.IRModule:
    """A module whose inputs have these types, and whose output is what is `made` of them."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(made(*inputs)))
        builder.emit_func_output(out)
    return builder.get()


def the_call(types: Sequence[relax.TensorType], made: Callable[..., relax.Expr]) -> relax.Call:
    """The call of such a module."""
    return called_in(one_call(types, made))


def called_in(module: tvm.IRModule) -> relax.Call:
    """The call of a module of one."""
    (function,) = module.functions.values()
    return function.body.blocks[0].bindings[0].value


def written(
    module: tvm.IRModule,
    legalization: Callable[[relax.BlockBuilder, relax.Call], relax.Expr | None],
) -> bool:
    """Whether a legalization of mcfuser's own takes the call of such a module, and leaves it not to
    TVM."""
    return legalization(relax.BlockBuilder(), called_in(module)) is not None
