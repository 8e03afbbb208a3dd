"""Computes the constant parts of an ONNX model, above all its shape arithmetic."""

from __future__ import annotations

import logging
import math
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
from mcfuser.graph.constants import LARGE, element_bytes
from mcfuser.graph.evaluate import Unfolded, evaluate
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.refusal import ort_reason
from mcfuser.graph.session import session
from mcfuser.graph.sizes import inferred_shapes
from mcfuser.graph.unread import unread_weights, with_weights_as_inputs, with_weights_back
from mcfuser.graph.weights import OnnxArray, OnnxModel, gathered, stored

log = logging.getLogger(__name__)

# These merge operators into ones that hide the products, or shapes into ones TVM cannot read.
_UNWANTED = ["MatMulAddFusion", "ReshapeFusion"]
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
})  # fmt: skip
_WEIGHTS = frozenset({"DequantizeLinear"})
"""Constants that stay as they are: narrow weights, which a product reads."""
_LARGEST = 64 << 20
"""Bytes that a folded value may have in a model of any size."""
_MOST_BYTES = "optimization.constant_folding_max_output_size_in_bytes"
_GROWTH = 4
"""Folded values may have this multiple of the bytes of the constants that they are made from."""

_UNLIMITED = ModelLimits(weight_bytes=1 << 62)  # what was computed has been counted before


def fold(model: OnnxModel) -> OnnxModel:
    """The model with every value that depends on no input computed; input shapes must be fixed.

    Raises ModelError where onnxruntime refuses the model.
    """
    unread = unread_weights(model)
    if not unread:
        return _folded(model)
    return with_weights_back(_folded(with_weights_as_inputs(model, unread)), model, unread)


def _folded(model: OnnxModel) -> OnnxModel:
    types = [v.type.tensor_type.elem_type for v in model.proto.graph.input]
    types += [w.data_type for w in model.proto.graph.initializer]
    if any(t in _NARROW for t in types):  # onnxruntime would widen these operators on a CPU
        _accepted(model, _options(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL))
        return _fold_here(model)
    folded = _fold_by_onnxruntime(model)
    return _fold_here(folded, _WEIGHTS) if _unfinished(folded.proto.graph) else folded


def _unfinished(graph: onnx.GraphProto) -> bool:
    """Whether onnxruntime has left constants: it folds no NonZero, and so nothing that follows from
    one."""
    known = {w.name for w in graph.initializer}
    return any(n.op_type == "NonZero" and n.input[0] in known for n in graph.node)


def _fold_by_onnxruntime(model: OnnxModel) -> OnnxModel:
    options = _options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    most = max(_LARGEST, _GROWTH * max(_weight_bytes(model), default=0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        for key, value in (
            (_MOST_BYTES, str(most)),
            ("session.optimized_model_external_initializers_file_name", "folded.data"),
            ("session.optimized_model_external_initializers_min_size_in_bytes", str(LARGE)),
            ("session.disable_prepacking", "1"),  # which copies weights, and nothing is run
        ):
            options.add_session_config_entry(key, value)
        if not _accepted(model, options):
            return _fold_here(model)
        folded = onnx.load(path, load_external_data=False)
        return gathered(folded, DataFolder(path.parent), _UNLIMITED)  # they stay mapped


def _weight_bytes(model: OnnxModel) -> list[int]:
    """The bytes of each weight of the graph."""
    return [element_bytes(w.data_type, math.prod(w.dims)) for w in model.proto.graph.initializer]


def _options(level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return options


def _accepted(model: OnnxModel, options: onnxruntime.SessionOptions) -> bool:
    """Whether onnxruntime has all operators of the model; raises ModelError where it refuses it."""
    try:
        session(model, options, _UNWANTED)
    except ort_errors.NotImplemented:
        return False
    except Exception as error:  # onnxruntime's errors have no common base class
        raise ModelError(f"the model cannot be loaded: {ort_reason(error)}") from None
    return True


def _fold_here(model: OnnxModel, staying: frozenset[str] = frozenset()) -> OnnxModel:
    """Computes constant nodes one by one, until no more nodes are constant.

    A node stays that onnxruntime cannot compute, whose result would be too large, or whose
    operator is one of those `staying`.
    """
    proto, weights = model.proto, dict(model.weights)
    left = _LARGEST + _GROWTH * sum(_weight_bytes(model))
    while True:
        proto = inferred_shapes(proto)
        known = {w.name: w for w in proto.graph.initializer}
        shapes = _shapes(proto.graph)
        kept = []
        for node in proto.graph.node:
            arrays = None
            try:
                if node.op_type not in staying:
                    arrays = _evaluated(node, known, weights, shapes, proto.opset_import, left)
            except Unfolded as reason:
                log.debug("node '%s' is not folded: %s", node.name, reason)
            if arrays is None:
                kept.append(node)
                continue
            left -= sum(a.nbytes for a in arrays.values())
            for name, array in arrays.items():
                known[name] = stored(name, array, weights)
        done = len(kept) == len(proto.graph.node)
        read = {name for graph in _graphs(kept) for node in graph for name in node.input}
        read |= {o.name for o in proto.graph.output}
        del proto.graph.node[:], proto.graph.value_info[:], proto.graph.initializer[:]
        proto.graph.node.extend(kept)
        proto.graph.initializer.extend(w for n, w in known.items() if n in read)
        weights = {n: a for n, a in weights.items() if n in read}
        if done:
            return OnnxModel(proto, weights)


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
    weights: Mapping[str, OnnxArray],
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
    arrays = {n: weights[n] if n in weights else numpy_helper.to_array(known[n]) for n in inputs}
    return evaluate(node, arrays, opsets, most)
