"""Activations and fused products of onnxruntime's; two operators that TVM imports wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.known import INTEGERS


def erf_gelu(body: NodeBody, x: str) -> str:
    """x times the normal distribution function of x."""
    erf = body.op("Erf", body.scaled(x, math.sqrt(0.5)))
    return body.op("Mul", body.scaled(x, 0.5), body.op("Add", erf, body.like(1.0, x)))


def gelu(body: NodeBody) -> list[str | None]:
    """com.microsoft's Gelu."""
    return [erf_gelu(body, body.read(0))]


def bias_gelu(body: NodeBody) -> list[str | None]:
    """com.microsoft's BiasGelu: the Gelu of a sum."""
    return [erf_gelu(body, body.op("Add", *body.reads(2)))]


def bias_split_gelu(body: NodeBody) -> list[str | None]:
    """com.microsoft's BiasSplitGelu: of a sum, one half times the Gelu of the other."""
    total = body.op("Add", *body.reads(2))
    left, right = body.split(total, len(body.shape(total)) - 1, 2)
    return [body.op("Mul", left, erf_gelu(body, right))]


def bias_add(body: NodeBody) -> list[str | None]:
    """com.microsoft's BiasAdd: the sum of x, a row, and another value."""
    return [body.op("Add", body.op("Add", *body.reads(2)), body.read(2))]


def fast_gelu(body: NodeBody) -> list[str | None]:
    """com.microsoft's FastGelu: Gelu by tanh, of x or of a sum."""
    x = body.read(0)
    if (bias := body.input(1)) is not None:
        x = body.op("Add", x, bias)
    return [tanh_gelu(body, x)]


def tanh_gelu(body: NodeBody, x: str) -> str:
    """Gelu by tanh."""
    cube = body.op("Mul", body.op("Mul", x, x), x)
    inner = body.scaled(body.op("Add", x, body.scaled(cube, 0.044715)), math.sqrt(2 / math.pi))
    one = body.op("Add", body.op("Tanh", inner), body.like(1.0, x))
    return body.op("Mul", body.scaled(x, 0.5), one)


def quick_gelu(body: NodeBody) -> list[str | None]:
    """com.microsoft's QuickGelu."""
    return [swish(body, body.read(0), body.attribute("alpha", 1.702))]


def swish(body: NodeBody, x: str, alpha: float = 1.0) -> str:
    """x sigmoid(alpha x)."""
    return body.op("Mul", x, body.op("Sigmoid", body.scaled(x, alpha)))


def fused_product(body: NodeBody) -> list[str | None]:
    """com.microsoft's FusedMatMul, or TransposeMatMul as it was called: a product of operands that
    may be transposed, times a number."""
    operands = [
        _turned(body, x, body.attribute(f"transBatch{n}", 0), body.attribute(f"trans{n}", 0))
        for n, x in zip("AB", body.reads(2), strict=True)
    ]
    return [body.scaled(body.op("MatMul", *operands), body.attribute("alpha", 1.0))]


def _turned(body: NodeBody, x: str, batch: int, matrix: int) -> str:
    """x with its batch moved before its matrices, and these transposed."""
    order = list(range(len(body.shape(x))))
    if batch:
        order.insert(len(order) - 2, order.pop(0))
    if matrix and len(order) > 1:
        order[-2:] = order[:-3:-1]
    return body.transpose(x, *order)


def fused_gemm(body: NodeBody) -> list[str | None]:
    """com.microsoft's FusedGemm: a Gemm and an activation."""
    kept = {n: body.attribute(n, d) for n, d in (("alpha", 1.0), ("beta", 1.0))}
    kept |= {n: body.attribute(n, 0) for n in ("transA", "transB")}
    return [_activated(body, body.op("Gemm", *body.node.input, **kept))]


def fused_convolution(body: NodeBody) -> list[str | None]:
    """com.microsoft's FusedConv: a convolution, a sum, and an activation."""
    operands = [*body.reads(2), *filter(None, [body.input(2)])]
    y = body.op("Conv", *operands, **body.window())
    if (other := body.input(3)) is not None:
        y = body.op("Add", y, other)
    return [_activated(body, y)]


def _activated(body: NodeBody, x: str) -> str:
    """x after the activation that the node names, with that one's parameters."""
    name = body.attribute("activation", "")
    given = body.attribute("activation_params", None)
    if given is None:
        given = [body.attribute(f"activation_{n}", None) for n in ("alpha", "beta")]
        given = [g for g in given if g is not None]
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return body.op(name, x)
        case "LeakyRelu":
            return body.op(name, x, alpha=(given or [0.01])[0])
        case "HardSigmoid":
            alpha, beta = given or (0.2, 0.5)
            return body.op(name, x, alpha=alpha, beta=beta)
        case "Clip":
            low, high = given
            return body.op(name, x, body.like(low, x), body.like(high, x))
    raise body.refusal(f"its activation '{name}' is not known")


def is_infinite(body: NodeBody) -> list[str | None] | None:
    """ONNX's IsInf of one sign, which TVM ignores, or of bfloat16, which it lacks."""
    x = body.widened(body.read(0))
    signs = [body.attribute(f"detect_{s}", 1) for s in ("negative", "positive")]
    if all(signs):
        return None if x == body.read(0) else [body.op("IsInf", x)]
    if not any(signs):
        return [body.op("Less", x, x)]
    compared = body.op("Less" if signs[0] else "Greater", x, body.like(0.0, x))
    return [body.op("And", body.op("IsInf", x), compared)]


def widened(*dtypes: int) -> Callable[[NodeBody], list[str | None] | None]:
    """The rewrite of an operator of ONNX's that TVM lacks for these types of floats, or imports
    wrongly: the operator of the same numbers as float32."""

    def written(body: NodeBody) -> list[str | None] | None:
        dtype = body.dtype(body.read(0))
        if dtype not in dtypes:
            return None
        kept = {a.name: helper.get_attribute_value(a) for a in body.node.attribute}
        y = body.op(body.node.op_type, *map(body.widened, body.node.input), **kept)
        return [y if body.dtype(y) == TensorProto.BOOL else body.cast(y, dtype)]

    return written


def extreme_of_bools(body: NodeBody) -> list[str | None] | None:
    """ONNX's ReduceMax and ReduceMin of bools, for which TVM has no least value: of numbers."""
    x, *axes = body.node.input
    if body.dtype(body.read(0)) != TensorProto.BOOL:
        return None
    kept = {a.name: helper.get_attribute_value(a) for a in body.node.attribute}
    y = body.op(body.node.op_type, body.cast(x, TensorProto.INT32), *axes, **kept)
    return [body.cast(y, TensorProto.BOOL)]


def power(body: NodeBody) -> list[str | None] | None:
    """ONNX's Pow of bfloat16, or of two types: the result has that of the base."""
    base, exponent = body.reads(2)
    dtype = body.dtype(base)
    if dtype == TensorProto.BFLOAT16:
        wide = TensorProto.FLOAT
    elif dtype == body.dtype(exponent):
        return None
    else:
        wide = TensorProto.DOUBLE if dtype in INTEGERS else dtype
    return [body.cast(body.op("Pow", body.cast(base, wide), body.cast(exponent, wide)), dtype)]


def celu(body: NodeBody) -> list[str | None]:
    """ONNX's Celu, which TVM lacks; its function in ONNX's standard is of float32 alone."""
    x = body.read(0)
    wide = body.widened(x)
    alpha, one, zero = (body.like(n, wide) for n in (body.attribute("alpha", 1.0), 1.0, 0.0))
    below = body.op("Sub", body.op("Exp", body.op("Div", wide, alpha)), one)
    below = body.op("Min", body.op("Mul", below, alpha), zero)
    return [body.cast(body.op("Add", body.op("Relu", wide), below), body.dtype(x))]


def dropout(body: NodeBody) -> list[str | None] | None:
    """ONNX's Dropout with its mask, which is true everywhere as nothing is trained."""
    if not body.wants(1):
        return None
    if (training := body.input(2)) is not None:
        known = body.array(training)
        if known is None or bool(np.any(known)):
            raise body.refusal("it is for training, or may be ('training_mode')")
    x = body.read(0)
    return [x, body.op("Not", body.op("Less", x, x))]
