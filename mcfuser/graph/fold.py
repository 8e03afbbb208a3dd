"""Computes the constant parts of an ONNX model, its shape arithmetic above all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from mcfuser.errors import ModelError
from mcfuser.graph.refusal import sentence

# These merge operators into ones that hide the products, or shapes into ones TVM cannot read.
_UNWANTED = ["MatMulAddFusion", "ReshapeFusion"]
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "If", "Loop"})


def fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with what depends on no input computed; input shapes must be bound.

    Raises ModelError where onnxruntime finds the model wrong.
    """
    types = [v.type.tensor_type.elem_type for v in proto.graph.input]
    types += [w.data_type for w in proto.graph.initializer]
    if any(t in _NARROW for t in types):  # onnxruntime would widen these operators on a CPU
        return _fold_here(proto)
    return _fold_by_onnxruntime(proto)


def _fold_by_onnxruntime(proto: onnx.ModelProto) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        try:
            onnxruntime.InferenceSession(
                proto.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_UNWANTED,
            )
        except ort_errors.NotImplemented:
            return _fold_here(proto)
        except (
            ort_errors.Fail,
            ort_errors.InvalidArgument,
            ort_errors.InvalidGraph,
            ort_errors.InvalidProtobuf,
            ort_errors.RuntimeException,
        ) as error:
            reason = sentence(error).rpartition(" : ")[2]
            raise ModelError(f"the model cannot be loaded: {reason}") from None
        return onnx.load(path)


def _fold_here(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Node by node with onnx's own evaluator, until nothing more is constant."""
    while True:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        known = {w.name: w for w in proto.graph.initializer}
        shapes = _shapes(proto.graph)
        left = []
        for node in proto.graph.node:
            arrays = _evaluated(node, known, shapes, proto)
            if arrays is None:
                left.append(node)
                continue
            known |= {n: numpy_helper.from_array(a, n) for n, a in arrays.items()}
        done = len(left) == len(proto.graph.node)
        del proto.graph.node[:], proto.graph.value_info[:], proto.graph.initializer[:]
        proto.graph.node.extend(left)
        read = {name for node in left for name in node.input}
        read |= {o.name for o in proto.graph.output}
        proto.graph.initializer.extend(w for n, w in known.items() if n in read)
        if done:
            return proto


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes that are known to be fixed."""
    found = {}
    for value in (*graph.input, *graph.value_info):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[value.name] = tuple(d.dim_value for d in dims)
    return found


def _evaluated(
    node: onnx.NodeProto,
    known: dict[str, TensorProto],
    shapes: dict[str, tuple[int, ...]],
    proto: onnx.ModelProto,
) -> dict[str, NDArray[np.generic]] | None:
    """A node's results, where they depend on no input."""
    if node.op_type in _RANDOM:
        return None
    if node.op_type == "Shape" and node.input[0] in shapes:
        given = {a.name: a.i for a in node.attribute}
        part = slice(given.get("start"), given.get("end"))
        return {node.output[0]: np.array(shapes[node.input[0]][part], np.int64)}
    inputs = [name for name in node.input if name]
    if not all(name in known for name in inputs):
        return None
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    graph = helper.make_graph([node], "constant", [], outputs, [known[n] for n in inputs])
    alone = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    arrays = ReferenceEvaluator(alone).run(None, {})
    return dict(zip((o.name for o in outputs), (np.asarray(a) for a in arrays), strict=True))
