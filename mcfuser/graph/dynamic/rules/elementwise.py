"""Operators that compute each element from those at the same position: they keep padding where it
is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from mcfuser.graph.dynamic.layout import (
    Layout,
    Operand,
    PaddedDimension,
    Sign,
    all_zero,
    extents,
    finest,
    is_dynamic,
    same,
)
from mcfuser.graph.dynamic.node import PaddedNode
from mcfuser.graph.dynamic.padded import FLOATS

_ODD = frozenset({
    "Abs", "Asin", "Asinh", "Atan", "Cast", "CastLike", "Ceil", "Celu", "Dropout", "Elu", "Erf",
    "Floor", "Gelu", "HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu",
    "Sign", "Sin", "Sinh", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
})  # fmt: skip
"""Functions of one number that are 0 at 0."""
_BOUNDED = frozenset({
    "Abs", "Asinh", "Atan", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Dropout", "Elu",
    "Erf", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu",
    "Mish", "Neg", "Not", "PRelu", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
    "Softsign", "Swish", "Tanh", "ThresholdedRelu",
})  # fmt: skip
"""Functions of finite numbers that are finite."""
_NONNEGATIVE = frozenset({"Abs", "Exp", "Relu", "Sigmoid", "Softplus", "Sqrt", "HardSigmoid"})
_KEEPS_SIGN = frozenset({"Identity", "Ceil", "Cast", "CastLike"})
_ALWAYS_FINITE = frozenset({
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not",
    "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseNot", "BitwiseXor",
})  # fmt: skip
_JOINED = frozenset({"Add", "Sub", "Sum", "Max", "Min", "Mean", "Or", "Where"})
"""Functions of several numbers that are 0 where all are, and finite where all are."""
_OTHERS = frozenset({
    "Acos", "Acosh", "Asin", "Atanh", "Cosh", "Exp", "Log", "Reciprocal", "Sinh", "Sqrt", "Tan",
    "Mul", "Div", "Mod", "Pow", "QuantizeLinear", "DequantizeLinear",
})  # fmt: skip
_OF_FIRST = frozenset({"CastLike", "Dropout", "QuantizeLinear", "DequantizeLinear"})
"""Operators whose result has the shape of their first operand."""

ELEMENTWISE = _ODD | _BOUNDED | _ALWAYS_FINITE | _JOINED | _OTHERS


def elementwise(n: PaddedNode) -> list[Operand]:
    """Any operator of this module."""
    read = n.operands()
    if n.node.op_type in ("Div", "Mod") and n.dtype(1) not in FLOATS:
        read[1] = _divisor(n, read[1])  # an integer divided by 0 ends the process
    read = _alike(n, read)
    names = iter(read)
    whole = n.write([next(names).name if name else "" for name in n.node.input])
    layout = broadcast(n, read[:1] if n.node.op_type in _OF_FIRST else read)
    if any(n.node.output[1:]):
        raise n.refusal("its second result is used")
    finite, sign = _range(n, read)
    return n.result(whole[0], _with_zeros(n, layout, read, finite), finite, sign)


def _alike(n: PaddedNode, read: Sequence[Operand]) -> list[Operand]:
    """The operands, all with the same factors in each dimension, where one holds several extents
    in a dimension in which another one holds their product as one."""
    made, rank = list(read), max(len(x.layout) for x in read)
    for d in range(-rank, 0):
        there = [i for i, x in enumerate(made) if len(x.layout) >= -d and x.layout[d]]
        dims = [made[i].layout[d] for i in there]
        points = len(n.graph.points)
        if len({extents(dim, points) for dim in dims}) == 1 and len({len(d) for d in dims}) > 1:
            alike = all(same(dim, dims[0]) for dim in dims)
            for i in there:
                made[i] = _refined(made[i], d, dims) if alike else n.single(made[i], d)
    return made


def _refined(x: Operand, d: int, dims: Sequence[PaddedDimension]) -> Operand:
    """The operand with the factors of the finest of dimensions that have the same padding."""
    layout = list(x.layout)
    zero = all_zero(layout[d])
    layout[d] = tuple(f.with_zero(zero) for f in finest(dims))
    return replace(x, layout=tuple(layout))


def broadcast(n: PaddedNode, read: Sequence[Operand]) -> Layout:
    """The layout of what operands of several shapes make, without its zeros."""
    rank = max(len(x.layout) for x in read)
    dims = []
    for d in range(-rank, 0):
        there = [x.layout[d] for x in read if len(x.layout) >= -d and x.layout[d]]
        if any(not same(one, there[0]) for one in there[1:]):
            sizes = [extents(one, 1)[0] for one in there]
            raise n.refusal(
                f"its operands have different run-time extents along dimension {d + rank}, which "
                f"are {', '.join(map(str, sizes))} here (dimensions of inputs with one name in the "
                "model are one extent)"
            )
        dims.append(finest(there))
    return tuple(dims)


def _divisor(n: PaddedNode, x: Operand) -> Operand:
    dims = [i for i, d in enumerate(x.layout) if is_dynamic(d)]
    return n.masked(x, 1, dims, 1)


def _with_zeros(n: PaddedNode, layout: Layout, read: Sequence[Operand], finite: bool) -> Layout:
    kind, rank = n.node.op_type, len(layout)

    def zero(x: Operand, d: int, f: int) -> bool:
        dim: PaddedDimension = x.layout[d - rank] if len(x.layout) >= rank - d else ()
        return bool(dim) and dim[f].zero

    def holds(d: int, f: int) -> bool:
        if len(read) == 1 or kind in _OF_FIRST:
            return kind in _ODD and zero(read[0], d, f)
        if kind in ("Mul", "And"):
            return (finite or kind == "And") and any(zero(x, d, f) for x in read)
        if kind == "Where":
            return all(zero(x, d, f) for x in read[1:])
        if kind == "Div":
            return finite and zero(read[0], d, f)
        return kind in _JOINED and all(zero(x, d, f) for x in read)

    return tuple(
        tuple(f.with_zero(holds(d, i)) for i, f in enumerate(dim)) for d, dim in enumerate(layout)
    )


def _range(n: PaddedNode, read: Sequence[Operand]) -> tuple[bool, Sign]:
    """Whether the result is finite, and its sign."""
    kind = n.node.op_type
    finite = all(x.finite for x in read)
    signs = [x.sign for x in read]
    least: Sign = "any" if "any" in signs else "nonnegative"
    if kind in _ALWAYS_FINITE:
        return True, "nonnegative"
    if n.graph.upper.dtype(n.node.output[0]) not in (0, *FLOATS):
        return True, "any"
    match kind:
        case "Mul":
            squared = len(read) == 2 and read[0].name == read[1].name
            positive: Sign = "positive" if set(signs) == {"positive"} else least
            return finite, "nonnegative" if squared and positive == "any" else positive
        case "Add" | "Sum":
            return finite, "positive" if "positive" in signs and "any" not in signs else least
        case "Max":
            return finite, "positive" if "positive" in signs else _any_nonnegative(signs)
        case "Div":
            return finite and signs[1] == "positive", least
        case "Reciprocal":
            return finite and signs[0] == "positive", signs[0]
        case "Sqrt":
            return finite and signs[0] != "any", signs[0]
        case "Pow":
            return _power(n, finite, signs[0])
        case "Where":
            return all(x.finite for x in read[1:]), "any" if "any" in signs[1:] else "nonnegative"
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return finite, "any"
    if kind in _KEEPS_SIGN:
        from_bool = kind == "Cast" and n.dtype(0) == TensorProto.BOOL
        return finite, "nonnegative" if from_bool else signs[0]
    sign: Sign = "nonnegative" if kind in _NONNEGATIVE else "any"
    return finite and (kind in _BOUNDED or kind in _JOINED), sign


def _any_nonnegative(signs: Sequence[Sign]) -> Sign:
    return "nonnegative" if any(s != "any" for s in signs) else "any"


def _power(n: PaddedNode, finite: bool, sign: Sign) -> tuple[bool, Sign]:
    exponents = n.graph.arrays(n.node.input[1])
    if exponents is None or exponents[0].size != 1:
        return False, "any"
    exponent = float(np.asarray(exponents[0]).reshape(()))
    if exponent > 0 and exponent % 2 == 0:
        return finite, "positive" if sign == "positive" else "nonnegative"
    if exponent > 0 and (exponent.is_integer() or sign != "any"):
        return finite, sign
    return finite and sign == "positive", "positive" if sign == "positive" else "any"
