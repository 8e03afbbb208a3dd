"""Scalar expressions as CUDA C, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import assert_never

from mcfuser.expr import Call, Cast, Const, Expr, Index, Read

_INFIX: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==",
                             "ne": "!=", "and": "&&", "or": "||"}  # fmt: skip
_CALLS: Mapping[str, str] = {"pow": "powf", "abs": "fabsf", "exp": "expf", "exp2": "exp2f",
                             "log": "logf", "sqrt": "sqrtf", "tanh": "tanhf", "erf": "erff",
                             "floor": "floorf", "round": "rintf"}  # fmt: skip
_FAST: Mapping[str, str] = {"exp": "__expf", "tanh": "fast_tanh"}
"""Functions of which some units in the last place of a float32 are wrong, and more of tanh near
zero: nothing that numbers of 16 bits would show."""

NUMBER: Mapping[str, str] = {
    "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "float64": "double",
    "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long",
    "bool": "bool",
}  # fmt: skip
"""The types of elements."""
WIDE: Mapping[str, str] = {"float32": "{}", "float16": "__half2float({})",
                           "bfloat16": "__bfloat162float({})"}  # fmt: skip
"""An element as a float32."""
NARROW: Mapping[str, str] = {"float32": "{}", "float16": "__float2half_rn({})",
                             "bfloat16": "__float2bfloat16_rn({})"}  # fmt: skip
"""A float32 as an element."""


def arithmetic(dtype: str) -> tuple[str, str, str]:
    """The type in which elements are added and compared, an element in it, and it as an element:
    formats of a text. Narrow floats are float32 there."""
    kind = "float" if dtype in WIDE else NUMBER[dtype]
    return kind, WIDE.get(dtype, "{}"), NARROW.get(dtype, "{}")


HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
"""What declares the narrow types."""
FUNCTIONS = """
__device__ __forceinline__ float max_or_nan(float x, float y) {
  return x != x ? x : y != y ? y : fmaxf(x, y);
}
__device__ __forceinline__ float min_or_nan(float x, float y) {
  return x != x ? x : y != y ? y : fminf(x, y);
}
__device__ __forceinline__ float fast_tanh(float x) {
  return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}
"""
"""What expressions call that CUDA does not have."""


def expression(e: Expr, read: Callable[[Read], str], fast: bool) -> str:
    """An expression of real numbers, whose reads are the text that `read` gives. With `fast`, its
    functions are those that are good enough for results of 16 bits."""

    def made(e: Expr) -> str:
        match e:
            case Const():
                return literal(e.value)
            case Read():
                return read(e)
            case Cast():
                return made(e.arg)
            case Call():
                return _call(e.op, [made(a) for a in e.args], fast)
            case Index():
                raise ValueError(f"the position along axis '{e.axis}' is no value of a unit")
            case _:
                assert_never(e)

    return made(e)


def literal(value: float | int | bool) -> str:
    """A constant."""
    if isinstance(value, bool):
        return "true" if value else "false"
    number = float(value)
    if math.isnan(number):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(number):
        return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
    return f"{number!r}f" if number >= 0 else f"({number!r}f)"


def _call(op: str, args: list[str], fast: bool) -> str:
    if op in _INFIX:
        return f"({args[0]} {_INFIX[op]} {args[1]})"
    match op:
        case "div":
            return f"__fdividef({args[0]}, {args[1]})" if fast else f"({args[0]} / {args[1]})"
        case "neg":
            return f"(-{args[0]})"
        case "not":
            return f"(!{args[0]})"
        case "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case "max" | "min":
            return f"{op}_or_nan({args[0]}, {args[1]})"
    called = _FAST.get(op, _CALLS[op]) if fast else _CALLS[op]
    return f"{called}({', '.join(args)})"
