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
) -> onnxruntime.InferenceSession:
    """A session on the CPU without the `disabled` optimizers; raises what onnxruntime raises.

    Weights that are arrays are not copied: the caller keeps them while the session is used.
    """
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
