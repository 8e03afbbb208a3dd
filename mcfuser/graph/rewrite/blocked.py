"""Constant weights that are integers, in blocks that have a scale and a zero point each.

They stay as few bytes as they are until what reads them is compiled (graph.integer_weights): what
makes numbers of them is written out in operators of ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from onnx import TensorProto, helper

from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.weights import OnnxArray

_BITS: Mapping[str, int] = MappingProxyType({"int4": 4, "uint4": 4, "int2": 2, "uint2": 2})
"""The bits of the types whose numbers share bytes."""


Pick = Callable[[str], str]
"""Gives the rows of a constant that are chosen, by its name; all where none are."""


@dataclass(frozen=True)
class BlockedWeights:
    """Weights (number - zero point) x scale.

    The `numbers` have two dimensions in place of an `axis` of the weights: the blocks, and the
    places in a block. `scales` and `zeros` broadcast to their shape. Numbers of less than 8 `bits`
    are not negative.
    """

    numbers: OnnxArray
    scales: OnnxArray
    zeros: OnnxArray
    bits: int
    axis: int = 0

    @property
    def parts(self) -> int:
        """How many numbers share a byte."""
        fitting = 8 // self.bits
        return fitting if self.numbers.shape[self.axis + 1] % fitting == 0 else 1

    def written(
        self, body: NodeBody, dtype: int, shape: Sequence[int], chosen: str | None = None
    ) -> str:
        """Writes the weights as values of a type, in their own shape, or those `chosen` by numbers
        along the first dimension; their name. Where integers are to become floats, they are one
        constant."""

        def pick(held: str) -> str:
            extents = body.shape(held)
            if chosen is None or not extents or extents[0] == 1:
                return held
            return body.op("Gather", held, chosen, axis=0)

        if chosen is not None:
            shape = (*body.shape(chosen), *shape[1:])
        if not body.integers:
            wide = np.float32
            real = self.numbers.astype(wide) - self.zeros.astype(wide)
            values = (real * self.scales.astype(wide)).reshape(-1, *shape[1:])
            return pick(body.const(values, dtype))
        write = self._whole if self.parts == 1 else self._shared
        return body.reshape(write(body, dtype, pick), *shape)

    def _whole(self, body: NodeBody, dtype: int, pick: Pick) -> str:
        """Numbers less their zero points, a byte each, or two; zero points may be no integers."""
        zeros = self.zeros.astype(np.float32)
        parts = zeros - np.trunc(zeros)
        wide = body.cast(pick(whole_constant(body, self.numbers, zeros - parts)), dtype)
        if np.any(parts):
            wide = body.op("Sub", wide, pick(body.const(parts, dtype)))
        return body.op("Mul", wide, pick(body.const(self.scales, dtype)))

    def _shared(self, body: NodeBody, dtype: int, pick: Pick) -> str:
        """Numbers that share bytes: those of one are as far apart in their block as can be, so that
        neighbouring bytes have neighbouring numbers."""
        at, parts = self.axis + 1, self.parts
        before, (count, *after) = self.numbers.shape[:at], self.numbers.shape[at:]
        split = self.numbers.reshape(*before, parts, count // parts, *after)
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        shifts = shifts.reshape(parts, 1, *(1 for _ in after))
        octets = np.bitwise_or.reduce(split.astype(np.uint8) << shifts, axis=at)
        held = pick(body.const(np.expand_dims(octets, at), TensorProto.UINT8))
        moved = body.op("BitShift", held, body.const(shifts, TensorProto.UINT8), direction="RIGHT")
        lowest = body.op("Mod", moved, body.const(1 << self.bits, TensorProto.UINT8))
        wide = body.cast(lowest, dtype)
        if np.any(self.zeros):
            wide = body.op("Sub", wide, pick(body.const(_spread(self.zeros, at), dtype)))
        return body.op("Mul", wide, pick(body.const(_spread(self.scales, at), dtype)))


def _spread(x: OnnxArray, axis: int) -> OnnxArray:
    """Numbers that broadcast along a new axis; one number where all are the same."""
    if x.size and (x == x.flat[0]).all():
        return np.asarray(x.flat[0])
    return np.expand_dims(x, axis)


def whole_constant(body: NodeBody, numbers: OnnxArray, zeros: OnnxArray) -> str:
    """Writes numbers less their zero points as a constant of the smallest type that has them all;
    its name. Of 16 bits at most they stay integers (graph.integer_weights)."""
    whole = numbers.astype(np.int64) - zeros.astype(np.int64)
    for dtype in (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32):
        bounds = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
        if not whole.size or (whole.min() >= bounds.min and whole.max() <= bounds.max):
            return body.const(whole, dtype)
    return body.const(whole, TensorProto.INT64)


def row_along(x: OnnxArray, rank: int, axis: int) -> OnnxArray:
    """A row of numbers as it broadcasts along an axis; one number stays one."""
    return x.reshape([-1 if d == axis % rank else 1 for d in range(rank)] if x.size > 1 else ())


def of_constants(
    numbers: OnnxArray, scales: OnnxArray, zeros: OnnxArray | None, axis: int, block: int
) -> BlockedWeights:
    """The weights of a DequantizeLinear. Without a `block` the scales are one number, or a row
    along the axis; with one there is one for each block along it."""
    shape, bits = numbers.shape or (1,), _BITS.get(numbers.dtype.name, 8)
    zeros = np.zeros((), np.int32) if zeros is None else zeros.astype(np.int32)
    if block:
        at = axis
        scales, zeros = (np.expand_dims(x, at + 1) if x.ndim else x for x in (scales, zeros))
    else:
        scales, zeros = (row_along(x, len(shape), axis) for x in (scales, zeros))
        others = [d for d in range(len(shape)) if d != axis or scales.size == 1]
        at = next((d for d in others if shape[d] % (8 // bits) == 0), 0)  # numbers share bytes so
        block = shape[at]
        scales, zeros = (np.expand_dims(x, at) if x.ndim else x for x in (scales, zeros))
    whole = numbers.astype(np.int32).reshape(*shape[:at], -1, block, *shape[at + 1 :])
    if bits < 8 and numbers.dtype.name.startswith("int"):
        whole, zeros = whole + (1 << (bits - 1)), zeros + (1 << (bits - 1))
    return BlockedWeights(whole, scales, zeros, bits, at)
