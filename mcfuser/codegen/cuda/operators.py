"""Operators that kernels in CUDA C compute, in the place of TVM's: `OPERATORS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import tvm
from tvm import relax

from mcfuser.codegen.call import called
from mcfuser.codegen.cuda.kernel import SourceKernel, SourceOperator
from mcfuser.codegen.cuda.scan import cumulated
from mcfuser.codegen.cuda.scatter import scattered
from mcfuser.codegen.cuda.top import best

OPERATORS: Mapping[str, Callable[[relax.Call], SourceOperator | None]] = MappingProxyType({
    "relax.cumsum": cumulated,
    "relax.scatter_elements": scattered,
    "relax.scatter_nd": scattered,
    "relax.topk": best,
})  # fmt: skip
"""What computes a call of Relax's operators; None where TVM does."""


ON_HOST: Mapping[str, str] = MappingProxyType({
    "relax.nonzero": "NonZero or Compress", "relax.unique": "Unique",
})  # fmt: skip
"""Relax's operators that TVM's runtime computes in the host's memory alone, as what it finds has as
many elements as there are; and ONNX's that become them."""


def only_on_host(module: tvm.IRModule) -> str | None:
    """An operator of the model that no GPU computes; None where there is none."""
    found: list[str] = []

    def look(e: relax.Expr) -> None:
        if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) and e.op.name in ON_HOST:
            found.append(ON_HOST[e.op.name])

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, look)
    return found[0] if found else None


def with_operators(module: tvm.IRModule) -> tuple[tvm.IRModule, tuple[SourceKernel, ...]]:
    """The module with launches of kernels for the calls of these operators, and the kernels."""
    mutator = _Calls(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    return mutator.builder_.finalize(), tuple(dict.fromkeys(mutator.kernels))


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.kernels: list[SourceKernel] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        made = OPERATORS.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        operator = made(call) if made is not None else None
        if operator is None:
            return call
        kernel, text = operator.kernel()
        self.kernels.append(kernel)
        several = isinstance(call.ty, relax.TupleType)
        ty = [*call.ty.fields] if several else call.ty
        return called(self.builder_, text, operator.name, list(call.args), ty)
