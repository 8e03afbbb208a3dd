"""Sums of narrow values (float16, bfloat16) that no kernel computes: in float32, rounded once.

Kernels sum so of themselves. TVM sums in the type of the values: a mean of 33,333 numbers of half
precision was 69 % too small, since from 2,048 times its step on a number no longer grows.
"""

from __future__ import annotations

import tvm
from tvm import relax

from mcfuser.graph.dataflow import dtype
from mcfuser.graph.matching import calls, calls_rewritten, with_arguments
from mcfuser.graph.precision import NARROW, PRODUCTS, WIDE

SUMS = frozenset({
    "sum", "mean", "prod", "variance", "std", "cumsum", "cumprod",
    "nn.softmax", "nn.log_softmax", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d",
    "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d",
    "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose",
})  # fmt: skip
"""Relax's operators besides products whose results are sums, or products of many values, without
their prefix. Norms are not among them: TVM computes those in float32."""
_NAMES = frozenset(f"relax.{name}" for name in PRODUCTS | SUMS)


def summed_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` computes every sum of narrow values in float32."""
    main = module["main"]
    if not any(_is_narrow(call) for name, call in calls(main.body) if name in _NAMES):
        return module
    changed = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    changed.update_func(changed.get_global_var("main"), calls_rewritten(main, _NAMES, _summed))
    return relax.transform.Normalize()(changed)


def _is_narrow(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and dtype(value) in NARROW


def _summed(call: relax.Call) -> relax.Expr:
    if not _is_narrow(call):
        return call
    name = str(call.op.name).removeprefix("relax.")
    if name in PRODUCTS:
        return relax.op.astype(_with_wide_result(call, name), dtype(call))
    wide = with_arguments(call, [_widened(a) for a in call.args])
    return relax.op.astype(wide, dtype(call))


def _with_wide_result(call: relax.Call, name: str) -> relax.Call:
    """A product of narrow operands with a result in float32."""
    if name == "matmul":
        return relax.op.matmul(*call.args, out_dtype=WIDE)
    a, make = call.attrs, getattr(relax.op.nn, name.removeprefix("nn."))
    layouts = str(a.data_layout), str(a.kernel_layout), str(a.out_layout) or None
    windows = [int(n) for n in a.strides], [int(n) for n in a.padding], [int(n) for n in a.dilation]
    return make(*call.args, *windows, int(a.groups), *layouts, WIDE)


def _widened(operand: relax.Expr) -> relax.Expr:
    """An operand in float32 where it is narrow."""
    return relax.op.astype(operand, WIDE) if _is_narrow(operand) else operand
