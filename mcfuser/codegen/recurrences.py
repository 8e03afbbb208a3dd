"""The calls of recurrences in a module, which a code generator replaces by calls of its loops."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from mcfuser.chain.recurrence import Recurrence, is_recurrence, recurrence_of

MadeLoop = Callable[[relax.BlockBuilder, relax.Call, Recurrence], relax.Expr]
"""What stands for a call of a recurrence."""


def with_loops(module: tvm.IRModule, loop: MadeLoop) -> tvm.IRModule:
    """The module with what `loop` makes of each call of a recurrence."""
    mutator = _Calls(module, loop)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    return mutator.builder_.finalize()


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, loop: MadeLoop) -> None:
        super().__init__(module)
        self.loop = loop

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        what = call.args[0] if call.args else None
        name = str(what.global_symbol) if isinstance(what, relax.ExternFunc) else ""
        return self.loop(self.builder_, call, recurrence_of(name)) if is_recurrence(name) else call
