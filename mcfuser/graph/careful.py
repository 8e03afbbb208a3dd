"""A model for onnxruntime whose sigmoids, Fourier transforms, and products with weights of few bits
are precise.

onnxruntime's own sigmoid errs by up to 1e-7: by an eighth of that of -15.5, and by all of that of
-18.5. A detector's scores are such numbers wherever there is nothing to detect. And a MatMulNBits
or a QMoE may say that its other operand may be rounded to bytes, which costs half a percent of the
result.
Its Fourier transforms of lengths that are no powers of two err by 4e-5 of a spectrum's norm,
a hundred times as much as others, and all of what a quiet band has.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from mcfuser.graph.weights import OnnxModel

_ACCURACY = "accuracy_level"
_NARROW = ("MatMulNBits", "QMoE")
"""What multiplies by weights of few bits."""
_TRANSFORMS = {"STFT": (0, 2), "DFT": (0,)}
"""Fourier transforms, and which of their inputs are floats."""


def careful(model: OnnxModel) -> OnnxModel:
    """The model with sigmoid(x) = exp(-softplus(-x)) in its graph, which keeps its precision for
    every x, with Fourier transforms in float64, and with products of few bits that round nothing;
    the model itself where it has none of them."""
    nodes = model.proto.graph.node
    if not any(_is_sigmoid(n) or _is_transform(n) or _is_rounded(n) for n in nodes):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    written = [one for node in nodes for one in _written(node)]
    del proto.graph.node[:]
    proto.graph.node.extend(written)
    return model.with_proto(proto)


def _is_sigmoid(node: onnx.NodeProto) -> bool:
    return node.op_type == "Sigmoid" and not node.domain


def _is_transform(node: onnx.NodeProto) -> bool:
    return node.op_type in _TRANSFORMS and not node.domain


def _is_rounded(node: onnx.NodeProto) -> bool:
    """Whether a product may round what it multiplies weights of few bits by."""
    return node.op_type in _NARROW and any(a.name == _ACCURACY for a in node.attribute)


def _written(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    if _is_rounded(node):
        exact = onnx.NodeProto()
        exact.CopyFrom(node)
        del exact.attribute[:]
        exact.attribute.extend(a for a in node.attribute if a.name != _ACCURACY)
        yield exact
        return
    if _is_transform(node):
        yield from _in_float64(node)
        return
    if not _is_sigmoid(node):
        yield node
        return
    before, result = node.input[0], node.output[0]
    for kind in ("Neg", "Softplus", "Neg", "Exp"):
        after = result if kind == "Exp" else f"{before}/{kind}/{result}"
        yield helper.make_node(kind, [before], [after])
        before = after


def _in_float64(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A transform of casts to float64, and a cast to what its signal is."""
    exact = onnx.NodeProto()
    exact.CopyFrom(node)
    signal, result = node.input[0], node.output[0]
    for i in _TRANSFORMS[node.op_type]:
        if i < len(node.input) and node.input[i]:
            exact.input[i] = f"{node.input[i]}/float64/{result}"
            yield helper.make_node(
                "Cast", [node.input[i]], [exact.input[i]], to=onnx.TensorProto.DOUBLE
            )
    exact.output[0] = f"{result}/float64"
    yield exact
    yield helper.make_node("CastLike", [exact.output[0], signal], [result])
