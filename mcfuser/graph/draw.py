"""Random inputs of a model, within what its graph allows."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from mcfuser.graph.known import known
from mcfuser.graph.role import InputRole, roles
from mcfuser.graph.weights import OnnxModel

Feeds = dict[str, NDArray[np.generic]]
"""The inputs of a model by name, in its order."""

_KEPT = 0.75
"""The share of a mask's elements that take part."""
_STEPS = 1000
"""Positions that a single one is drawn from, as a diffusion model's time step."""
_BYTES = {"int8": (-128, 127), "uint8": (0, 255)}
_WIDE = 1000
"""The largest quantized number of more than 8 bits."""


def inputs(model: OnnxModel, random: np.random.Generator) -> Feeds:
    """Random inputs of a model whose input shapes are fixed.

    Floats are normally distributed. Indices are within their tables, lengths and positions within
    what they are compared with, quantized numbers any of their type; what an If compares is what it
    is compared with. Masks, and integers and bools whose role does not show, are zeros and ones;
    the first element of each of a mask's rows takes part, so that no row is hidden. Where the ones
    of a row are counted, they come first.
    """
    shown = roles(known(model))
    feeds: Feeds = {}
    for value in model.proto.graph.input:
        shape, dtype = shape_of(value), dtype_of(value)
        role = shown.get(value.name)
        if role is None and dtype.kind not in "iub":
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = _drawn(role or InputRole("mask"), shape, dtype, random)
    return feeds


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The shape of an input, which is fixed."""
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def dtype_of(value: onnx.ValueInfoProto) -> np.dtype[np.generic]:
    """The element type of an input."""
    dtype: np.dtype[np.generic] = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return dtype


def _drawn(
    role: InputRole,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    random: np.random.Generator,
) -> NDArray[np.generic]:
    match role.kind:
        case "index" | "length" | "choice":
            most = min(role.high, _BYTES.get(dtype.name, (0, role.high))[1])
            return random.integers(role.low, most, shape, endpoint=True).astype(dtype)
        case "filled":
            ones = random.integers(role.low, role.high, (*shape[:-1], 1), endpoint=True)
            return (np.arange(shape[-1]) < ones).astype(dtype)
        case "position":
            if shape and shape[-1] > 1:
                return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
            return random.integers(0, _STEPS, shape).astype(dtype)
        case "number":
            low, high = _BYTES.get(dtype.name, (0, _WIDE))
            return random.integers(low, high, shape, endpoint=True).astype(dtype)
        case "mask" | "hidden":
            shown = _shown(shape, random)
            return (shown if role.kind == "mask" else ~shown).astype(dtype)


def _shown(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.bool_]:
    """Which elements take part: the first one of each row, and most others. Rows run along the last
    dimension that is longer than 1."""
    row = max((d for d, extent in enumerate(shape) if extent > 1), default=None)
    if row is None:
        return np.ones(shape, np.bool_)
    shown = np.asarray(random.random(shape) < _KEPT)
    np.moveaxis(shown, row, 0)[0] = True
    return shown
