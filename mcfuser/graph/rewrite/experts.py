"""com.microsoft's MoE and QMoE: feed-forward blocks of which each row takes a few.

All experts are computed for all rows, and weighed with zero where a row did not choose them, unless
few rows choose less than the weights of all experts: then the weights of those are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.activation import swish, tanh_gelu
from mcfuser.graph.rewrite.blocked import BlockedWeights
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import unpacked
from mcfuser.graph.weights import OnnxArray

_MOVED = 3
"""How often gathered weights are moved: read, written, and read by the product."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The experts that rows take.

    `weights` are [rows, experts, 1] where all are computed, and [rows, chosen, 1] where those named
    by `numbers`, [rows x chosen], are gathered.
    """

    weights: str
    rows: int
    count: int
    numbers: str | None


Weights = Callable[[int, str | None], str]
"""Writes the weights of one of three products, [experts, depth, columns], those with some numbers
where these are given."""


def mixture(body: NodeBody) -> list[str | None]:
    """MoE: experts with weights [experts, columns, depth] in floating point."""

    def weights(product: int, numbers: str | None) -> str:
        return body.transpose(_picked(body, body.read(2 * product), numbers), 0, 2, 1)

    return [_mixed(body, weights, {1: 3, 2: 5, 3: 7}, body.has(6), None)]


def quantized_mixture(body: NodeBody) -> list[str | None]:
    """QMoE: experts with weights of 2, 4 or 8 bits, [experts, columns, bytes of the depth]."""
    if (kind := body.attribute("quant_type", "int")) != "int":
        raise body.refusal(f"its weights are '{kind}'; only integers are known here")
    if body.attribute("weights_prepacked", -1) == 1:
        raise body.refusal("its weights are in a layout of one device ('weights_prepacked')")

    def weights(product: int, numbers: str | None) -> str:
        made, shape = _blocks(body, product)
        dtype = body.dtype(body.read(0))
        return made.written(body, dtype, shape, numbers)

    biases = {1: 4, 2: 7, 3: 10}
    return [_mixed(body, weights, biases, body.has(8), body.input(14))]


def _blocks(body: NodeBody, product: int) -> tuple[BlockedWeights, tuple[int, ...]]:
    """The weights of one of three products, and their shape: [experts, depth, columns]."""
    bits = body.attribute("expert_weight_bits", 4)
    bits = body.attribute(f"fc{product}_expert_weight_bits", bits)
    if bits not in (2, 4, 8):
        raise body.refusal(f"its weights have {bits} bits, not 2, 4 or 8")
    octets, scales = body.elements(3 * product - 1), body.elements(3 * product)
    experts, columns, _ = octets.shape
    numbers = unpacked(octets, bits)
    depth = numbers.shape[2]
    block = body.attribute("block_size", 0) or depth
    if depth % block:
        raise body.refusal(f"blocks of {block} do not divide the depth {depth}")
    body.room(experts, columns, depth)
    apart = (experts, columns, depth // block, block)
    zeros: OnnxArray = np.full((1, 1, 1, 1), 1 << (bits - 1), np.float32)
    if body.has(10 + product):
        each = unpacked(body.elements(10 + product), bits)[..., : scales.shape[-1]]
        zeros = each.reshape(experts, columns, -1, 1).astype(np.float32)
    order = (0, 2, 3, 1)
    made = BlockedWeights(
        numbers.reshape(apart).transpose(order),
        scales.reshape(experts, columns, -1, 1).transpose(order), zeros.transpose(order), bits, 1,
    )  # fmt: skip
    return made, (experts, depth, columns)


def _mixed(
    body: NodeBody, weights: Weights, biases: dict[int, int], third: bool, mixing: str | None
) -> str:
    """The experts' results, weighed and added; `biases` are the positions of the inputs that are
    added to each product, and `mixing` has what experts are weighed by where that is not what they
    are chosen by."""
    x = body.read(0)
    extents, depth = body.shape(x), body.shape(x)[-1]
    chosen = _routed(body, mixing)
    rows = body.reshape(x, 1, -1, depth)
    if chosen.numbers is not None:
        each = body.reshape(x, chosen.rows, 1, depth)
        each = body.op("Expand", each, body.ints([chosen.rows, chosen.count, depth]))
        rows = body.reshape(each, chosen.rows * chosen.count, 1, depth)

    def product(number: int, value: str) -> str:
        y = body.op("MatMul", value, weights(number, chosen.numbers))
        if (bias := body.input(biases[number])) is None:
            return y
        bias = _picked(body, bias, chosen.numbers)
        return body.op("Add", y, body.reshape(bias, *body.shape(bias)[:1], 1, -1))

    other = product(3, rows) if third else None
    inner = _activated(body, product(1, rows), other)
    y = product(2, inner)
    if chosen.numbers is not None:
        y = body.reshape(y, chosen.rows, chosen.count, -1)
    else:
        y = body.transpose(y, 1, 0, 2)
    weighed = body.op("Mul", y, body.cast(chosen.weights, body.dtype(y)))
    return body.reshape(body.sum(weighed, 1), *extents)


def _picked(body: NodeBody, whole: str, numbers: str | None) -> str:
    """What experts with some numbers have of a value whose first dimension counts experts."""
    return whole if numbers is None else body.op("Gather", whole, numbers, axis=0)


def _routed(body: NodeBody, mixing: str | None) -> _Chosen:
    """Which experts a row takes: the first ones of its scores [rows, experts]."""
    if body.attribute("use_sparse_mixer", 0):
        raise body.refusal("it samples experts ('use_sparse_mixer')")
    scores, count = body.widened(body.read(1)), body.attribute("k", 1)
    rows, experts = body.shape(scores, 2)
    shares = body.softmax(scores)
    best, numbers = body.ops("TopK", [shares, body.ints([count])], 2, axis=1)
    if mixing is not None:
        best = body.op("GatherElements", body.widened(mixing), numbers, axis=1)
    if body.attribute("normalize_routing_weights", 0):
        best = body.op("Div", best, body.sum(best, 1, kept=True))
    if _MOVED * rows * count < experts:
        flat = body.reshape(numbers, rows * count)
        return _Chosen(body.reshape(best, rows, count, 1), rows, count, flat)
    names = body.const(np.arange(experts).reshape(1, 1, experts), TensorProto.INT64)
    own = body.op("Equal", body.reshape(numbers, rows, count, 1), names)
    nothing = body.const(0.0, body.dtype(best))
    shared = body.op("Where", own, body.reshape(best, rows, count, 1), nothing)
    return _Chosen(body.reshape(body.sum(shared, 1), rows, experts, 1), rows, count, None)


def _activated(body: NodeBody, x: str, other: str | None) -> str:
    """What an expert makes of its first product, and of its third one, which is perhaps a part of
    the first: [experts, rows, columns]."""
    kind, fusion = body.attribute("activation_type", "relu"), body.attribute("swiglu_fusion", 0)
    if kind == "swiglu":
        return _gated(body, x, other, fusion)
    match kind:
        case "relu":
            y = body.op("Relu", x)
        case "silu":
            y = swish(body, x)
        case "gelu":
            y = tanh_gelu(body, x)
        case "identity":
            y = x
        case _:
            raise body.refusal(f"its activation '{kind}' is not known")
    return y if other is None else body.op("Mul", y, other)


def _gated(body: NodeBody, x: str, other: str | None, fusion: int) -> str:
    """SwiGLU: columns of both take turns, or lie one behind the other, or are two products."""
    columns = body.shape(x)[2]
    if fusion == 1:
        x, other = (body.slice(x, 2, i, columns, 2) for i in (0, 1))
    elif fusion == 2:
        x, other = (body.slice(x, 2, i * columns // 2, (i + 1) * columns // 2) for i in (0, 1))
    if other is None:
        raise body.refusal("its gate has no other product ('swiglu_fusion')")
    if (limit := body.attribute("swiglu_limit", None)) is not None:
        high, low = body.like(limit, x), body.like(-limit, x)
        x, other = body.op("Min", x, high), body.op("Clip", other, low, high)
    gate = swish(body, x, body.attribute("activation_alpha", 1.0))
    if (beta := body.attribute("activation_beta", 0.0)) != 0:
        other = body.op("Add", other, body.like(beta, other))
    return body.op("Mul", gate, other)
