"""Operators that kernels in CUDA C compute, in the place of TVM's: `OPERATORS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import tvm
from tvm import relax

from mcfuser.codegen.call import called, with_calls
from mcfuser.codegen.cuda.concatenate import copied_parts, joined
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
"""What computes a call of Relax's operators; None where TVM does. Concatenations have
a kernel, too, which reads slices where they are."""


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


def _tensors(call: relax.Call) -> Iterator[relax.Expr]:
    """What a call reads; the fields of tuples one by one."""
    for arg in call.args:
        yield from arg.fields if isinstance(arg, relax.Tuple) else (arg,)


def _operator(
    builder: relax.BlockBuilder, call: relax.Call
) -> tuple[SourceOperator, list[relax.Expr]] | None:
    """The operator that computes a call, and the tensors that it reads; None where TVM does."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    if name == "relax.concat":
        parts = copied_parts(call, builder.lookup_binding)
        operator = joined(call, parts) if parts is not None else None
        return None if operator is None else (operator, [part.array for part in parts or ()])
    operator = OPERATORS[name](call) if name in OPERATORS else None
    return None if operator is None else (operator, [*_tensors(call)])


def with_operators(module: tvm.IRModule) -> tuple[tvm.IRModule, tuple[SourceKernel, ...]]:
    """The module with launches of kernels for the calls of these operators, and the kernels."""
    kernels: list[SourceKernel] = []

    def launch(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
        found = _operator(builder, call)
        if found is None:
            return None
        operator, read = found
        kernel, text = operator.kernel()
        kernels.append(kernel)
        several = isinstance(call.ty, relax.TupleType)
        ty = [*call.ty.fields] if several else call.ty
        return called(builder, text, operator.name, read, ty)

    return with_calls(module, launch), tuple(dict.fromkeys(kernels))
