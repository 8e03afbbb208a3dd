"""A model for onnxruntime whose sigmoids are precise.

onnxruntime's own errs by up to 1e-7: by an eighth of the sigmoid of -15.5, and by all of that of
-18.5. A detector's scores are such numbers wherever there is nothing to detect.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from mcfuser.graph.weights import OnnxModel


def careful(model: OnnxModel) -> OnnxModel:
    """The model with sigmoid(x) = exp(-softplus(-x)) in its graph, which keeps its precision for
    every x; the model itself where it has none."""
    nodes = model.proto.graph.node
    if not any(_is_sigmoid(n) for n in nodes):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    written = [one for node in nodes for one in _written(node)]
    del proto.graph.node[:]
    proto.graph.node.extend(written)
    return model.with_proto(proto)


def _is_sigmoid(node: onnx.NodeProto) -> bool:
    return node.op_type == "Sigmoid" and not node.domain


def _written(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    if not _is_sigmoid(node):
        yield node
        return
    before, result = node.input[0], node.output[0]
    for kind in ("Neg", "Softplus", "Neg", "Exp"):
        after = result if kind == "Exp" else f"{before}/{kind}/{result}"
        yield helper.make_node(kind, [before], [after])
        before = after
