"""The calls of recurrences in a module, which a code generator replaces by calls of its loops."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from mcfuser.chain.recurrence import Recurrence, is_recurrence, recurrence_of
from mcfuser.codegen.call import with_named_calls

MadeLoop = Callable[[relax.BlockBuilder, relax.Call, Recurrence], relax.Expr]
"""What stands for a call of a recurrence."""


def with_loops(module: tvm.IRModule, loop: MadeLoop) -> tvm.IRModule:
    """The module with what `loop` makes of each call of a recurrence."""

    def written(builder: relax.BlockBuilder, call: relax.Call, name: str) -> relax.Expr | None:
        return loop(builder, call, recurrence_of(name)) if is_recurrence(name) else None

    return with_named_calls(module, written)
