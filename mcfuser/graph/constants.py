"""Checks the tensors of a model file: their data is as long as declared."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from mcfuser.errors import ModelError
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.messages import inside

BITS = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16, TensorProto.BOOL: 8,
    TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32, TensorProto.INT64: 64,
    TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
    TensorProto.COMPLEX64: 64, TensorProto.COMPLEX128: 128, TensorProto.STRING: 0,
    TensorProto.FLOAT8E4M3FN: 8, TensorProto.FLOAT8E4M3FNUZ: 8, TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8, TensorProto.FLOAT8E8M0: 8,
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2, TensorProto.UINT2: 2,
}  # fmt: skip
"""Bits of an element. Text has none here: it is stored in a field of its own."""
LARGE = 1 << 16
"""A constant of more bytes is never a shape."""
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def check_constants(proto: onnx.ModelProto, limits: ModelLimits) -> None:
    """Raises ModelError for a tensor of an unknown type or shape, or whose data is missing or too
    long.

    All tensors are checked, wherever the format allows one; of those with external data, only type
    and shape.
    """
    for tensor in inside(proto, onnx.TensorProto):
        _check_length(tensor, limits)
    for sparse in inside(proto, onnx.SparseTensorProto):
        what = f"sparse tensor '{sparse.values.name}'"
        check_extents(sparse.dims, what, limits)


def check_extents(dims: list[int], what: str, limits: ModelLimits) -> int:
    """The number of elements of a tensor with these dimensions.

    Raises ModelError where that is more than allowed or a dimension is negative.
    """
    limits.check("rank", len(dims), f"{what} has {{}} dimensions")
    if any(d < 0 for d in dims):
        raise ModelError(f"{what} has a dimension of extent {min(dims)}; export the model again")
    elements = math.prod(dims)
    limits.check("elements", elements, f"{what} has {{}} elements")
    return elements


def element_bytes(data_type: int, elements: int) -> int:
    """The bytes that `elements` of a type take in memory; one byte each for an unknown type."""
    return -(-elements * BITS.get(data_type, 8) // 8)


def is_large(tensor: TensorProto) -> bool:
    """Whether a tensor takes more than LARGE bytes."""
    return element_bytes(tensor.data_type, math.prod(tensor.dims)) > LARGE


def _check_length(tensor: TensorProto, limits: ModelLimits) -> None:
    what = f"tensor '{tensor.name}'"
    bits = BITS.get(tensor.data_type)
    if bits is None:
        raise ModelError(
            f"{what} has elements of the unknown type {tensor.data_type}; export the model again"
        )
    elements = check_extents(list(tensor.dims), what, limits)
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    if tensor.HasField("raw_data") and bits:
        wanted, held, unit = -(-elements * bits // 8), len(tensor.raw_data), "bytes"
    elif bits >= 8 or not bits:
        wanted = elements * (2 if tensor.data_type in _COMPLEX else 1)
        held = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        unit = "numbers" if bits else "texts"
    else:
        return  # the packing of such narrow types differs between versions
    if held != wanted:
        raise ModelError(
            f"{what} holds {held} {unit} where its shape asks for {wanted}; the model is "
            "damaged: export or download it again"
        )
