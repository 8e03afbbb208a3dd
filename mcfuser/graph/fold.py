"""Computes the constant parts of an ONNX model, above all its shape arithmetic."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from mcfuser.errors import ModelError
from mcfuser.graph.evaluate import OnnxArray, Unfolded, evaluate
from mcfuser.graph.refusal import sentence
from mcfuser.graph.sizes import inferred_shapes

log = logging.getLogger(__name__)

# These merge operators into ones that hide the products, or shapes into ones TVM cannot read.
_UNWANTED = ["MatMulAddFusion", "ReshapeFusion"]
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
})  # fmt: skip
_LARGEST = 64 << 20
"""Bytes that a folded value may have in a model of any size."""
_MOST_BYTES = "optimization.constant_folding_max_output_size_in_bytes"
_GROWTH = 4
"""Folded values may have this multiple of the bytes of the constants that they are made from."""


def fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value that depends on no input computed; input shapes must be fixed.

    Raises ModelError where onnxruntime refuses the model.
    """
    types = [v.type.tensor_type.elem_type for v in proto.graph.input]
    types += [w.data_type for w in proto.graph.initializer]
    if any(t in _NARROW for t in types):  # onnxruntime would widen these operators on a CPU
        _accepted(proto, _options(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL))
        return _fold_here(proto)
    return _fold_by_onnxruntime(proto)


def _fold_by_onnxruntime(proto: onnx.ModelProto) -> onnx.ModelProto:
    options = _options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    weights = [w.ByteSize() for w in proto.graph.initializer]
    most = max(_LARGEST, _GROWTH * max(weights, default=0))
    options.add_session_config_entry(_MOST_BYTES, str(most))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        if not _accepted(proto, options):
            return _fold_here(proto)
        return onnx.load(path)


def _options(level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return options


def _accepted(proto: onnx.ModelProto, options: onnxruntime.SessionOptions) -> bool:
    """Whether onnxruntime has all operators of the model; raises ModelError where it refuses it."""
    try:
        onnxruntime.InferenceSession(
            proto.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_UNWANTED,
        )
    except ort_errors.NotImplemented:
        return False
    except Exception as error:  # onnxruntime's errors have no common base class
        reason = sentence(error).rpartition(" : ")[2]
        raise ModelError(f"the model cannot be loaded: {reason}") from None
    return True


def _fold_here(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Computes constant nodes one by one, until no more nodes are constant.

    A node stays that onnxruntime cannot compute, or whose result would be too large.
    """
    left = _LARGEST + _GROWTH * sum(w.ByteSize() for w in proto.graph.initializer)
    while True:
        proto = inferred_shapes(proto)
        known = {w.name: w for w in proto.graph.initializer}
        shapes = _shapes(proto.graph)
        kept = []
        for node in proto.graph.node:
            try:
                arrays = _evaluated(node, known, shapes, proto.opset_import, left)
            except Unfolded as reason:
                log.debug("node '%s' is not folded: %s", node.name, reason)
                arrays = None
            if arrays is None:
                kept.append(node)
                continue
            left -= sum(a.nbytes for a in arrays.values())
            known |= {n: numpy_helper.from_array(a, n) for n, a in arrays.items()}
        done = len(kept) == len(proto.graph.node)
        read = {name for graph in _graphs(kept) for node in graph for name in node.input}
        read |= {o.name for o in proto.graph.output}
        del proto.graph.node[:], proto.graph.value_info[:], proto.graph.initializer[:]
        proto.graph.node.extend(kept)
        proto.graph.initializer.extend(w for n, w in known.items() if n in read)
        if done:
            return proto


def _graphs(nodes: Sequence[onnx.NodeProto]) -> Iterator[Sequence[onnx.NodeProto]]:
    """The node lists of a graph and of its nodes' branches, which read the graph's values, too."""
    yield nodes
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g.node)


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of the values whose extents are all numbers, by name."""
    shapes = {}
    for value in (*graph.input, *graph.value_info):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _evaluated(
    node: onnx.NodeProto,
    known: Mapping[str, TensorProto],
    shapes: Mapping[str, tuple[int, ...]],
    opsets: Sequence[onnx.OperatorSetIdProto],
    most: int,
) -> dict[str, OnnxArray] | None:
    """The results of a node, None where they are not constant; raises Unfolded as `evaluate`
    does."""
    if node.op_type in _RANDOM or any(a.HasField("g") or a.graphs for a in node.attribute):
        return None
    if node.op_type == "Shape" and node.input[0] in shapes:
        given = {a.name: a.i for a in node.attribute}
        part = slice(given.get("start"), given.get("end"))
        return {node.output[0]: np.array(shapes[node.input[0]][part], np.int64)}
    inputs = list(dict.fromkeys(name for name in node.input if name))
    if not all(name in known for name in inputs):
        return None
    return evaluate(node, {n: numpy_helper.to_array(known[n]) for n in inputs}, opsets, most)
