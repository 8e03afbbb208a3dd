"""Computes one constant ONNX node with onnxruntime, without any of its optimizations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from mcfuser.errors import ModelError
from mcfuser.graph.refusal import ort_reason, sentence
from mcfuser.graph.session import session
from mcfuser.graph.weights import OnnxArray, OnnxModel

_SHOWN = 4096
"""The values of inputs with at most so many elements are shown to shape inference."""
_BOUNDED = frozenset({"NonZero", "Compress", "Unique"})
"""Operators whose results' shapes depend on values, but are bounded by their inputs' shapes."""


class Unfolded(Exception):
    """A node cannot be computed here and stays in the model; the message says why."""


def evaluate(
    node: onnx.NodeProto,
    inputs: Mapping[str, OnnxArray],
    opsets: Sequence[onnx.OperatorSetIdProto],
    most: int,
) -> dict[str, OnnxArray]:
    """The results of a node, by name, given its inputs.

    Raises Unfolded where they would have more than `most` bytes, where their sizes are not known in
    advance, or where onnxruntime does not have the operator. Raises ModelError, naming the node,
    where the inputs do not fit the operator.
    """
    types = _types(node, inputs, opsets)
    size = 0
    for name in filter(None, node.output):
        size += _bytes(node, types.get(name), inputs)
    if size > most:
        raise Unfolded(f"node '{node.name}' would make {size} bytes; at most {most} are folded")
    wide = _widened(node)
    feeds = {n: a.astype(np.float32) if _narrow(a) else a for n, a in inputs.items()}
    graph = helper.make_graph(
        [wide],
        "constant",
        [helper.make_tensor_value_info(n, _element(a), a.shape) for n, a in feeds.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
    )
    try:
        results = _run(helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds)
    except (ort_errors.NotImplemented, ort_errors.NoSuchFile) as error:
        raise Unfolded(f"onnxruntime does not compute it: {sentence(error)}") from None
    except Exception as error:  # onnxruntime's errors have no common base class
        raise ModelError(
            f"operator '{node.op_type}' (node '{node.name}') cannot be computed: "
            f"{ort_reason(error)}"
        ) from None
    for name, array in results.items():
        if types[name].elem_type == TensorProto.BFLOAT16:
            results[name] = array.astype(ml_dtypes.bfloat16)
    return results


def _run(model: onnx.ModelProto, feeds: Mapping[str, OnnxArray]) -> dict[str, OnnxArray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    names = [o.name for o in model.graph.output]
    arrays = session(OnnxModel(model), options).run(names, dict(feeds))
    return {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}


def _types(
    node: onnx.NodeProto, inputs: Mapping[str, OnnxArray], opsets: Sequence[onnx.OperatorSetIdProto]
) -> dict[str, onnx.TypeProto.Tensor]:
    """The element types and shapes of the results that onnx infers, by name."""
    shown = [numpy_helper.from_array(a, n) for n, a in inputs.items() if a.size <= _SHOWN]
    graph = helper.make_graph(
        [node],
        "constant",
        [helper.make_tensor_value_info(n, _element(a), a.shape) for n, a in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        shown,
    )
    alone = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(alone)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise Unfolded(f"onnx does not infer its shapes: {error}") from None
    return {o.name: o.type.tensor_type for o in inferred.graph.output}


def _bytes(
    node: onnx.NodeProto, kind: onnx.TypeProto.Tensor | None, inputs: Mapping[str, OnnxArray]
) -> int:
    """The largest number of bytes that a result may have. Raises Unfolded where it is unknown."""
    if kind is None or not kind.elem_type:
        raise Unfolded(f"node '{node.name}' has a result of unknown type")
    dims = kind.shape.dim
    if kind.HasField("shape") and all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims):
        width = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
        return int(width * math.prod(d.dim_value for d in dims))
    if node.op_type in _BOUNDED:
        return int(sum(max(a.ndim, 1) * 8 * a.size for a in inputs.values()))
    raise Unfolded(f"node '{node.name}' has a result whose size is not known before it is computed")


def _element(array: OnnxArray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _narrow(array: OnnxArray) -> bool:
    """Whether an array is bfloat16, for which onnxruntime has no CPU kernels.

    Such nodes are computed in float32 and rounded, as a kernel would do.
    """
    return bool(array.dtype == ml_dtypes.bfloat16)


def _widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with float32 in place of bfloat16 in its attributes."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for attribute in wide.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.BFLOAT16:
            value = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(value, attribute.t.name))
    return wide
