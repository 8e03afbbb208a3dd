"""TVM's tensors and numpy's arrays over the same bytes, which are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from mcfuser.graph.weights import ALIGNMENT, OnnxArray


def tensor_over(array: OnnxArray) -> tvm.runtime.Tensor:
    """A tensor on the CPU with the bytes of an array: the array's own where these are aligned and
    dense, else a copy. Nobody may write to a tensor over a read-only array."""
    shared = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not shared or not array.nbytes:
        return tvm.runtime.tensor(np.asarray(array, order="C"))
    octets = array.reshape(-1).view(np.uint8)
    whole = tvm.runtime.from_dlpack(
        octets if octets.flags.writeable else np.asarray(_Unlocked(octets))
    )
    return whole._create_view(array.shape, str(array.dtype))


def array_over(tensor: Any) -> OnnxArray:
    """A read-only array with the bytes of a dense tensor on the CPU."""
    dtype = numpy_dtype(str(tensor.dtype))
    octets = np.from_dlpack(tensor._create_view((tensor.numel() * dtype.itemsize,), "uint8"))
    array = octets.view(dtype).reshape(tuple(tensor.shape))
    array.flags.writeable = False
    return array


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type of that name, which numpy itself may lack."""
    return np.dtype(getattr(ml_dtypes, name, name))


def lowest_number(name: str) -> float:
    """The lowest finite number of a real type."""
    return float(ml_dtypes.finfo(numpy_dtype(name)).min)  # type: ignore[no-untyped-call]


class _Unlocked:
    """The same bytes as an array that may be exported: DLPack has no read-only tensors."""

    def __init__(self, octets: OnnxArray) -> None:
        self.owner = octets  # it lives as long as arrays made of this object
        address, _ = octets.__array_interface__["data"]
        self.__array_interface__ = {**octets.__array_interface__, "data": (address, False)}


def tensor_form(dtype: str, shape: Sequence[int]) -> str:
    """A tensor's type and shape, for messages."""
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"
