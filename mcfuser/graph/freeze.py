"""Gives inputs of an ONNX model values that they always have.

A message of protobuf that follows another one in a file is merged with it. So the values are put
behind the model's bytes, as initializers of its graph, and nothing is read but its small parts. An
input that has an initializer is optional for every reader of ONNX; here it is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import InputError, ModelError
from mcfuser.graph.bind import DTYPES
from mcfuser.graph.external import is_external
from mcfuser.graph.messages import inside

LARGEST = 1 << 16
"""The most elements of an input that is given a value."""
_WORDS = {"true": True, "1": True, "false": False, "0": False}


def initializers(model: onnx.ModelProto, values: Mapping[str, str]) -> bytes:
    """What follows the bytes of a model in which inputs always have the `values`, by name: a number
    or several with commas between them, or `true` and `false`.

    One number is the value of all elements. Raises InputError where the model has no such input, or
    a value is none of its type and shape, and ModelError where an input is no tensor.
    """
    graph = model.graph
    given = {t.name for t in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in given}
    added = onnx.ModelProto()
    for name, text in values.items():
        if name not in inputs:
            named = f"'{name}' is an initializer already" if name in given else f"no input '{name}'"
            raise InputError(f"the model has {named}; its inputs are {', '.join(inputs) or 'none'}")
        added.graph.initializer.append(numpy_helper.from_array(_value(inputs[name], text), name))
    appended: bytes = added.SerializeToString()
    return appended


def has_files(model: onnx.ModelProto) -> bool:
    """Whether some data of a model are in files beside it."""
    return any(map(is_external, inside(model.graph, TensorProto)))


def _value(value: onnx.ValueInfoProto, text: str) -> NDArray[np.generic]:
    """The value of an input."""
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        raise ModelError(f"input '{value.name}' is no tensor of numbers or bools")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    numbers = np.array([_number(value.name, word, dtype) for word in text.split(",")], dtype)
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    shape = _shape(value.name, dims, len(numbers))
    if len(numbers) == 1:
        return np.full(shape, numbers[0])
    return numbers.reshape(shape)


def _number(name: str, word: str, dtype: np.dtype[np.generic]) -> float | int | bool:
    """A word as a number of a type."""
    text = word.strip().lower()
    try:
        number: float | int | bool
        if dtype == np.bool_:
            number = _WORDS[text]
        elif np.issubdtype(dtype, np.integer):
            number, limits = int(text), np.iinfo(dtype.name)
            if not limits.min <= number <= limits.max:
                raise ValueError
        else:
            number = float(text)
    except (KeyError, ValueError):
        what = "true or false" if dtype == np.bool_ else f"a number of type {dtype}"
        raise InputError(f"the value of input '{name}' is '{word.strip()}', not {what}") from None
    return number


def _shape(name: str, dims: Sequence[int], count: int) -> tuple[int, ...]:
    """The shape of a value of so many numbers: a dynamic dimension, -1 in `dims`, takes what the
    others leave, and is 1 for one number."""
    known, dynamic = math.prod(d for d in dims if d >= 0), dims.count(-1)
    if count == 1:
        shape = tuple(max(d, 1) if d < 0 else d for d in dims)
        if math.prod(shape) > LARGEST:
            raise InputError(f"input '{name}' has more than {LARGEST} elements")
        return shape
    if dynamic > 1 or known == 0 or count % known or (not dynamic and count != known):
        form = "x".join("?" if d < 0 else str(d) for d in dims) or "one number"
        raise InputError(f"input '{name}' is given {count} numbers; it is {form}")
    return tuple(count // known if d < 0 else d for d in dims)
