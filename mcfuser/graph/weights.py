"""The large weights of a model, apart from its protobuf message, which holds 2 GB at most.

A weight that is an array here is only declared in the message: its data location is "external",
and it names no file. What reads the message needs names, types and shapes alone; onnxruntime and
TVM are given the arrays, which may be in mapped files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.expr import NARROW
from mcfuser.graph.constants import BITS, LARGE, element_bytes, is_large
from mcfuser.graph.external import DataFolder, described, is_external
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.messages import inside

OnnxArray = NDArray[np.generic]
ALIGNMENT = 64
"""Bytes to which TVM wants the data of a tensor aligned."""
PART = 4 << 20
"""Bytes of a large array that one thread copies at a time. To round the weights of a diffusion
model takes six seconds of a core."""
NARROW_TYPES: Mapping[int, str] = MappingProxyType({
    helper.np_dtype_to_tensor_dtype(np.dtype(dtype)): dtype for dtype in NARROW
})  # fmt: skip
"""The element types of one and two bytes in which chains have integers, by ONNX's numbers."""
NONE: Mapping[str, OnnxArray] = MappingProxyType({})
"""No weights."""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model, and the weights of its graph, by name, that its message only declares."""

    proto: onnx.ModelProto
    weights: Mapping[str, OnnxArray] = field(default_factory=dict)

    def with_proto(self, proto: onnx.ModelProto) -> OnnxModel:
        """Another message with the same weights."""
        return self if proto is self.proto else replace(self, proto=proto)

    def array(self, weight: TensorProto) -> OnnxArray:
        """The elements of a weight, wherever they are."""
        given = self.weights.get(weight.name)
        return numpy_helper.to_array(weight) if given is None else given


@dataclass(frozen=True)
class OnnxPart:
    """Nodes, and the constants that they read, by name."""

    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, OnnxArray]


def with_parts(model: OnnxModel, parts: Mapping[int, OnnxPart], gone: Collection[int]) -> OnnxModel:
    """The model with parts before those of its nodes that have these numbers, and without the nodes
    that are `gone`, nor weights that nobody reads any more."""
    arrays, made = dict(model.weights), onnx.ModelProto()
    made.CopyFrom(model.proto)
    del made.graph.node[:]
    for i, node in enumerate(model.proto.graph.node):
        if i in parts:
            made.graph.node.extend(parts[i].nodes)
            for name, constant in parts[i].constants.items():
                made.graph.initializer.append(stored(name, constant, arrays))
        if i not in gone:
            made.graph.node.append(node)
    _drop_unread(made.graph, arrays)
    return OnnxModel(made, arrays)


def _drop_unread(graph: onnx.GraphProto, arrays: dict[str, OnnxArray]) -> None:
    """Drops the weights that no node reads any more."""
    read = names_read(graph)
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name in arrays.keys() - read:
        del arrays[name]


def gathered(
    proto: onnx.ModelProto,
    folder: DataFolder | None,
    limits: ModelLimits,
    embedded: Mapping[str, OnnxArray] = NONE,
) -> OnnxModel:
    """The model with its external data: the large weights of its graph as arrays over the folder's
    files, all other tensors inside of the message, which is changed. The weights `embedded` are
    declared there already.

    Raises ModelError where there is no folder to read from, where a tensor's place is not one of
    the folder's files, or where there is more data than the limits allow.
    """
    weights = dict(embedded)
    total = copied = 0
    for tensor, is_weight in _external(proto, set(embedded)):
        if folder is None:
            raise ModelError(
                f"{described(tensor)}, which did not come with it; give the folder that has both, "
                "as a zip or tar where the model is posted over HTTP"
            )
        _check_kind(tensor)
        size = element_bytes(tensor.data_type, math.prod(tensor.dims))
        total += size
        limits.check("weight_bytes", total, "the tensors in external files have {} bytes in all")
        data = folder.data(tensor, size)
        if not (is_weight and is_large(tensor) and BITS[tensor.data_type] >= 8):
            copied += size
            limits.check(
                "model_bytes", copied, "the external data of small or nested tensors has {} bytes"
            )
            tensor.raw_data = data.tobytes()
            tensor.ClearField("data_location")
        elif tensor.name in weights:
            raise ModelError(f"two weights have the name '{tensor.name}'; export the model again")
        else:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            weights[tensor.name] = data.view(dtype).reshape(tuple(tensor.dims))
        tensor.ClearField("external_data")
    return OnnxModel(proto, weights)


def _external(proto: onnx.ModelProto, embedded: set[str]) -> Iterator[tuple[TensorProto, bool]]:
    """The tensors with external data, and whether each is a weight of the main graph. One tensor of
    each name in `embedded` names no file."""
    for tensor in inside(proto, TensorProto):
        if is_declared(tensor) and tensor.name not in embedded:
            raise ModelError(
                f"tensor '{tensor.name}' names no external file; export the model again"
            )
        if is_declared(tensor):
            embedded.remove(tensor.name)
    for tensor in proto.graph.initializer:
        if is_external(tensor) and not is_declared(tensor):
            yield tensor, True
    for tensor in inside(proto, TensorProto):
        if is_external(tensor) and not is_declared(tensor):
            yield tensor, False


def operand_readers(graph: onnx.GraphProto) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    """The nodes of a graph that read each value, with the number of the operand."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, i))
    return readers


def constant_names(graph: onnx.GraphProto) -> set[str]:
    """The names of a graph's weights, and of what its nodes compute from nothing else."""
    known = {w.name for w in graph.initializer}
    for node in graph.node:
        if known.issuperset(filter(None, node.input)):
            known.update(node.output)
    return known


def names_elsewhere(graph: onnx.GraphProto) -> set[str]:
    """The names that something else than a graph's own nodes reads: nested graphs, and whoever
    takes its results."""
    parts = (part for node in graph.node for part in inside(node, onnx.GraphProto))
    return {o.name for o in graph.output}.union(*map(names_read, parts))


def names_read(graph: onnx.GraphProto) -> set[str]:
    """The names that nodes read, those of nested graphs included, and those of the results."""
    read = {name for node in inside(graph, onnx.NodeProto) for name in node.input}
    return read | {o.name for o in graph.output}


def is_declared(tensor: TensorProto) -> bool:
    """Whether the data of a tensor is an array of OnnxModel.weights."""
    return tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data


def declaration(name: str, data_type: int, shape: Sequence[int]) -> TensorProto:
    """A weight whose data is an array of OnnxModel.weights."""
    return TensorProto(
        name=name, data_type=data_type, dims=shape, data_location=TensorProto.EXTERNAL
    )


def stored(name: str, array: OnnxArray, weights: dict[str, OnnxArray]) -> TensorProto:
    """An array as a weight: a large one is added to `weights`, and only declared."""
    plain = array.dtype.kind in "biuf" or array.dtype == ml_dtypes.bfloat16
    if array.nbytes <= LARGE or not plain:
        return numpy_helper.from_array(np.asarray(array, order="C"), name)
    weights[name] = array
    return declaration(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def aligned(array: OnnxArray) -> OnnxArray:
    """The array, or a copy of it, that TVM's tensors share (graph.tensors)."""
    shared = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    return array if shared else aligned_copy(array)


def aligned_copy(array: OnnxArray, dtype: np.dtype[Any] | None = None) -> OnnxArray:
    """A dense copy of an array whose data is aligned, rounded to a type `dtype` if one is given:
    what is beyond its numbers becomes infinite."""
    copy = _room(array.shape, array.dtype if dtype is None else dtype)
    _fill([copy], [array])
    return copy


def side_by_side(matrices: Sequence[OnnxArray], axis: int = 1) -> OnnxArray:
    """Matrices of one type joined along an axis as one dense matrix, whose data is aligned."""
    extents, shape = [m.shape[axis] for m in matrices], list(matrices[0].shape)
    shape[axis] = sum(extents)
    whole = _room(shape, matrices[0].dtype)
    _fill(np.split(whole, np.cumsum(extents)[:-1], axis=axis), matrices)
    return whole


def _room(shape: Sequence[int], kind: np.dtype[Any]) -> OnnxArray:
    """A new array whose data is aligned."""
    size = math.prod(shape) * kind.itemsize
    octets = np.empty(size + ALIGNMENT, np.uint8)
    start = -octets.ctypes.data % ALIGNMENT
    room: OnnxArray = octets[start : start + size].view(kind).reshape(shape)
    return room


def _fill(places: Sequence[OnnxArray], arrays: Sequence[OnnxArray]) -> None:
    """Copies arrays to places of the same shapes, large ones in parts, by all cores."""
    parts = list[tuple[OnnxArray, OnnxArray]]()
    for place, array in zip(places, arrays, strict=True):
        count = min(len(array), array.nbytes // PART) if array.ndim else 0
        split = count >= 2
        parts += zip(
            np.array_split(place, count) if split else [place],
            np.array_split(array, count) if split else [array],
            strict=True,
        )
    if len(parts) < 2:
        for place, array in parts:
            _write(place, array)
        return
    with ThreadPoolExecutor() as threads:
        list(threads.map(_write, *zip(*parts, strict=True)))


def _write(place: OnnxArray, array: OnnxArray) -> None:
    with np.errstate(over="ignore", under="ignore"):
        place[...] = array


def _check_kind(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.STRING:
        raise ModelError(f"{described(tensor)}, but texts have no external form; export it again")
    if tensor.data_location != TensorProto.EXTERNAL or tensor.HasField("raw_data"):
        raise ModelError(f"{described(tensor)} and in the model as well; export the model again")
