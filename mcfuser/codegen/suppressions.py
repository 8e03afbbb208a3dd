"""The calls of suppressions in a module, which a code generator replaces by calls of its own."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from mcfuser.chain.suppression import Suppression, is_suppression, suppression_of
from mcfuser.codegen.call import with_named_calls

MadeSuppression = Callable[[relax.BlockBuilder, relax.Call, Suppression], relax.Expr]
"""What stands for a call of a suppression."""


def with_suppressions(module: tvm.IRModule, suppress: MadeSuppression) -> tvm.IRModule:
    """The module with what `suppress` makes of each call of a suppression."""

    def written(builder: relax.BlockBuilder, call: relax.Call, name: str) -> relax.Expr | None:
        return suppress(builder, call, suppression_of(name)) if is_suppression(name) else None

    return with_named_calls(module, written)
