"""Sessions of onnxruntime on models whose weights may be arrays."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxruntime
from onnx import helper

from mcfuser.graph.weights import OnnxArray, OnnxModel, names_read


def session(
    model: OnnxModel,
    options: onnxruntime.SessionOptions,
    disabled: Sequence[str] = (),
    usual: bool = False,
) -> onnxruntime.InferenceSession:
    """A session on the CPU without the `disabled` optimizers; raises what onnxruntime raises. It
    has one thread where several would lose updates (`loses_updates`), unless it is to run as
    `usual`.

    Weights that are arrays are not copied: the caller keeps them while the session is used.
    """
    if loses_updates(model.proto) and not usual:
        options.intra_op_num_threads = 1
    model = _without_unread(model)
    if model.weights:
        values = [_value(array) for array in model.weights.values()]
        options.add_external_initializers(list(model.weights), values)
    return onnxruntime.InferenceSession(
        model.proto.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(disabled),
    )


def loses_updates(proto: onnx.ModelProto) -> bool:
    """Whether a model has a ScatterND that adds, multiplies or chooses: onnxruntime's threads read
    and write the same element at the same time, and of 200,000 slices added to 20,000 some are
    lost in every other run, 0.3 to 0.7 % of the result (1.31 and 1.32, two threads)."""
    scatters = [n for n in proto.graph.node if n.op_type == "ScatterND"]
    return any(a.name == "reduction" and a.s != b"none" for n in scatters for a in n.attribute)


def _without_unread(model: OnnxModel) -> OnnxModel:
    """The model without the weights that nothing reads: onnxruntime drops them, and then does not
    find what it is given data for."""
    if not model.weights:
        return model
    graph = model.proto.graph
    unread = model.weights.keys() - names_read(graph) - {i.name for i in graph.input}
    if not unread:
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    kept = [t for t in graph.initializer if t.name not in unread]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return OnnxModel(proto, {n: a for n, a in model.weights.items() if n not in unread})


def _value(array: OnnxArray) -> onnxruntime.OrtValue:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.kind == "V":  # bfloat16 and others that numpy itself does not have
        array = array.view(f"u{array.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
