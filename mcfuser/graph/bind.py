"""Fixes the shapes of a model's inputs, as the model and the user give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx
from onnx import TensorProto

from mcfuser.errors import ModelError
from mcfuser.extents import InputExtent, InputShapes
from mcfuser.graph.constants import check_extents
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside

DTYPES = frozenset({
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    TensorProto.BOOL,
})  # fmt: skip

_NAME = re.compile(r"^(?!None$).*[^\W\d]")
"""The name of a dimension has a letter, and is not Python's word for nothing."""


def open_dimensions(proto: onnx.ModelProto) -> None:
    """Makes dimensions of extent -1, and those whose names are none, dynamic ones without a name.

    Some exporters write dynamic dimensions in these forms: '?' at two places is not one extent.
    """
    for d in inside(proto.graph, onnx.TensorShapeProto.Dimension):
        kind = d.WhichOneof("value")
        nameless = kind == "dim_param" and not _NAME.search(d.dim_param)
        if nameless or (kind == "dim_value" and d.dim_value == -1):
            d.ClearField(kind)


def bind(
    proto: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits = DEFAULTS,
) -> None:
    """Writes `shapes` (by input, or by the name of a dimension) into the model's inputs, and drops
    the shapes of other values.

    A dimension that several inputs name needs to be given once. Raises ModelError, naming the
    input and the dimension, where one stays dynamic or contradicts the model.
    """
    inputs, extents = {i.name: i for i in proto.graph.input}, dict[str, int]()
    named = named_extents(proto, shapes)
    for name, shape in shapes.items():
        check_extents(list(shape), f"--shape of {'dimension' if name in named else 'input'} "
                      f"'{name}'", limits)  # fmt: skip
        if name in named:
            (extents[name],) = shape
    for value in inputs.values():
        _check_type(value)
        _check_own_extents(value)
        if value.name in shapes:
            _bind_given(value, shapes[value.name], extents)
    for value in inputs.values():
        _bind_named(value, extents)
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def named_extents(proto: onnx.ModelProto, shapes: InputShapes) -> dict[str, InputExtent]:
    """The extents among `shapes` that are given by the name of a dimension, which no input has.
    Raises ModelError where something is named that the model has not, or a dimension is given
    several extents."""
    inputs = {i.name: i.type.tensor_type for i in proto.graph.input}
    known = dict.fromkeys(d.dim_param for t in inputs.values() for d in t.shape.dim if d.dim_param)
    found: dict[str, InputExtent] = {}
    for name, shape in shapes.items():
        if name in inputs:
            continue
        if name not in known:
            dimensions = f", and the dimensions {', '.join(known)}" if known else ""
            raise ModelError(
                f"--shape names '{name}'; the model has the inputs {', '.join(inputs)}{dimensions}"
            )
        if len(shape) != 1:
            raise ModelError(
                f"--shape gives dimension '{name}' {len(shape)} extents; give it one, as {name}=128"
            )
        (found[name],) = shape
    return found


def _check_type(value: onnx.ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelError(f"input '{value.name}' is a {kind or 'value of no type'}, not a tensor")
    dtype = value.type.tensor_type.elem_type
    if dtype not in DTYPES:
        known = dtype in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(dtype).lower() if known else f"number {dtype}"
        raise ModelError(
            f"input '{value.name}' has element type {name}, which is not supported; "
            "use a float, integer or bool type"
        )


def _check_own_extents(value: onnx.ValueInfoProto) -> None:
    """Raises ModelError where the model itself fixes an extent below 1; --shape may give 0."""
    for position, d in enumerate(value.type.tensor_type.shape.dim):
        if d.HasField("dim_value") and d.dim_value < 1:
            raise ModelError(
                f"dimension {position} of input '{value.name}' has extent {d.dim_value}; "
                "every extent must be at least 1"
            )


def _dimension(d: onnx.TensorShapeProto.Dimension, position: int) -> str:
    return f"'{d.dim_param}'" if d.dim_param else str(position)


def _bind_given(
    value: onnx.ValueInfoProto, shape: tuple[int, ...], extents: dict[str, int]
) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        for _ in shape:
            tensor.shape.dim.add()
    if len(tensor.shape.dim) != len(shape):
        raise ModelError(
            f"--shape gives input '{value.name}' {len(shape)} dimensions; "
            f"it has {len(tensor.shape.dim)}"
        )
    for position, (d, extent) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        fixed = d.dim_value if d.HasField("dim_value") else extents.get(d.dim_param, extent)
        if fixed != extent:
            raise ModelError(
                f"--shape gives dimension {_dimension(d, position)} of input '{value.name}' "
                f"extent {extent}; the model and the other shapes fix it at {fixed}"
            )
        if d.dim_param:
            extents[d.dim_param] = extent
        d.dim_value = extent


def _bind_named(value: onnx.ValueInfoProto, extents: Mapping[str, int]) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(
            f"input '{value.name}' has no shape; give it: --shape {value.name}=1x128, for example"
        )
    for position, d in enumerate(tensor.shape.dim):
        if d.dim_param in extents:
            d.dim_value = extents[d.dim_param]
        if not d.HasField("dim_value"):
            example = "x".join(str(x.dim_value or 128) for x in tensor.shape.dim)
            by_name = f"--shape {d.dim_param}=128 or " if d.dim_param else ""
            raise ModelError(
                f"dimension {_dimension(d, position)} of input '{value.name}' is dynamic; "
                f"fix it with {by_name}--shape {value.name}={example}, for example"
            )
