"""What the graph of a model makes of its inputs: masks, lengths, positions, indices of tables.

Each input is followed through the operators that keep its elements apart (casts, reshapes, sums
with constants, comparisons) to those that show what its elements mean.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx
from onnx import TensorProto

from mcfuser.graph.known import Known

RoleKind = Literal["index", "filled", "mask", "hidden", "length", "position", "number", "choice"]
"""`mask` is 1 (or true) where an element takes part, `hidden` is 1 where it does not; rows of a
`filled` one are so many ones, and zeros behind them; `number` is the quantized form of a real
number; `choice` is equal to what an If chooses its branch by."""


@dataclass(frozen=True, slots=True)
class InputRole:
    """The meaning of an input's elements, which may be from `low` to `high`; so may be the number
    of ones in a row."""

    kind: RoleKind
    low: int = 0
    high: int = 1


# A value with several roles has the first of these. An index outside of its table is an error,
# whatever else the value is.
_ORDER: tuple[RoleKind, ...] = (
    "index", "filled", "mask", "hidden", "length", "position", "number", "choice",
)  # fmt: skip
_CARRIERS = frozenset({
    "Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Slice", "Expand",
    "Tile", "Transpose", "Concat", "Split", "Clip", "Min", "Max", "Mod", "Dropout", "Abs",
})  # fmt: skip
"""Their results are elements of their first operand, or smaller ones."""
_PICKING: Mapping[str, tuple[int, ...]] = {
    "GatherElements": (0,), "GatherND": (0,), "Compress": (0,), "Pad": (0,), "Where": (1, 2),
    "ScatterElements": (0, 2), "ScatterND": (0, 2),
}  # fmt: skip
"""Operators whose results have elements of these operands, and others; of integers alone."""
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "Less": operator.lt, "LessOrEqual": operator.le, "Greater": operator.gt,
    "GreaterOrEqual": operator.ge, "Equal": operator.eq,
}  # fmt: skip
_DIVIDING = {
    ("Less", 1): (1, 1), ("Greater", 0): (1, 1),  # range < x
    ("Less", 0): (0, -1), ("Greater", 1): (0, -1),  # x < range
    ("LessOrEqual", 0): (1, 0), ("GreaterOrEqual", 1): (1, 0),  # x <= range
}  # fmt: skip
"""By a comparison with a range and the operand that is x: what is added to the range's ends to have
the least and the largest x. Whichever side takes part, something does."""
_QUANTIZED = frozenset({"DequantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv",
                        "QLinearMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
                        "QLinearAdd", "QLinearMul"})  # fmt: skip
_HIDING = 1e3
"""What is added to a score to hide it is at least as large, below zero."""
_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)


def roles(known: Known) -> dict[str, InputRole]:
    """The roles of a model's inputs, by name; an input is left out whose role does not show.

    Float inputs have the roles `mask` and `hidden` alone.
    """
    every: dict[str, InputRole] = {}
    for value in known.graph.input:
        is_float = value.type.tensor_type.elem_type in _FLOATS
        shown = list(_Walk(known, is_float).roles(value.name))
        for kind in _ORDER:
            same = [r for r in shown if r.kind == kind]
            if same:
                low = max(r.low for r in same)
                every[value.name] = InputRole(kind, low, max(low, min(r.high for r in same)))
                break
    return every


@dataclass(frozen=True, slots=True)
class _Derived:
    """The elements `scale * x + offset` of a value, x those of an input; `low` and `high` bound the
    offset. A scale of NaN stands for any function of x. With `summed` x are sums of an input's rows
    instead, each of which has so many elements."""

    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    summed: int = 0

    def at(self, x: float) -> float | None:
        """The element for an element of the input; None where it is not known."""
        return self.scale * x + self.low if self.low == self.high else None

    def between(self, least: float, most: float) -> tuple[int, int]:
        """The elements of the input, none of them negative, for which no element of the value is
        below `least` or above `most`."""
        ends = ((least - self.low) / self.scale, (most - self.high) / self.scale)
        if self.scale < 0:
            ends = ((most - self.high) / self.scale, (least - self.low) / self.scale)
        return max(0, math.ceil(ends[0])), max(0, math.floor(ends[1]))

    def times(self, low: float, high: float) -> _Derived:
        """The product with a number; with several, any function."""
        if low != high or low == 0:
            return _VAGUE
        low_end, high_end = sorted((self.low * low, self.high * low))
        return replace(self, scale=self.scale * low, low=low_end, high=high_end)

    def plus(self, low: float, high: float) -> _Derived:
        return replace(self, low=self.low + low, high=self.high + high)


_VAGUE = _Derived(math.nan)
_ITSELF = _Derived()


@dataclass
class _Walk:
    """The way of one input through the graph."""

    known: Known
    is_float: bool
    seen: set[str] = field(default_factory=set)

    def roles(self, name: str) -> Iterator[InputRole]:
        """The roles that the readers of an input show."""
        frontier = [(name, _Derived())]
        while frontier:
            value, derived = frontier.pop()
            if value in self.seen:
                continue
            self.seen.add(value)
            for node, i in self.known.readers.get(value, ()):
                if not math.isnan(derived.scale):
                    yield from self._shown(node, i, derived)
                elif node.op_type in ("Sin", "Cos") and not self.is_float:
                    yield InputRole("position", 0, 0)
                after = self._after(node, i, derived)
                if after is not None:
                    frontier += [(out, after) for out in node.output if out]

    def _after(self, node: onnx.NodeProto, i: int, derived: _Derived) -> _Derived | None:
        """What an operator makes of the value as its operand number `i`; None where the way ends
        there."""
        if node.op_type in _CARRIERS or (node.op_type == "Gather" and i == 0):
            if self._to_bool(node) and not math.isnan(derived.scale):
                return self._truth(derived, lambda v: v != 0)
            return derived if i == 0 or node.op_type in ("Concat", "Min", "Max") else None
        if i in _PICKING.get(node.op_type, ()) and not self.is_float:
            return derived
        if node.op_type in ("And", "Or"):
            return derived
        if node.op_type == "ReduceSum" and i == 0 and derived == _ITSELF and not self.is_float:
            return self._sum(node)
        if node.op_type == "Not":
            return derived.times(-1, -1).plus(1, 1)
        if node.op_type in ("MatMul", "Einsum") and self._other(node, i) is not None:
            return _VAGUE
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            return self._arithmetic(node, i, derived)
        if node.op_type == "Equal" or (node.op_type in _COMPARISONS and not self.is_float):
            other = self._other(node, i)
            if other is None or other[0] != other[1]:
                return None
            compare, number = _COMPARISONS[node.op_type], other[0]
            return self._truth(
                derived, lambda v: compare(v, number) if i == 0 else compare(number, v)
            )
        return None

    def _arithmetic(self, node: onnx.NodeProto, i: int, derived: _Derived) -> _Derived | None:
        other = self._other(node, i)
        if other is None:
            return None
        low, high = other
        match node.op_type, i:
            case "Add", _:
                return derived.plus(low, high)
            case "Sub", 0:
                return derived.plus(-high, -low)
            case "Sub", _:
                return derived.times(-1, -1).plus(low, high)
            case "Mul", _:
                return derived.times(low, high)
            case "Div", 0 if low == high != 0:
                return derived.times(1 / low, 1 / low)
        return _VAGUE

    def _sum(self, node: onnx.NodeProto) -> _Derived | None:
        """The sums of an input's rows, which lie along its last dimension."""
        shape = self.known.shape(node, 0)
        if not shape:
            return None
        axis = self.known.interval(node.input[1]) if len(node.input) > 1 else None
        given = next((a.ints for a in node.attribute if a.name == "axes"), None)
        if given is not None:
            axis = (given[0], given[0]) if len(given) == 1 else None
        last = len(shape) - 1
        alone = last == 0 and axis is None and given is None
        return _Derived(summed=shape[-1]) if alone or axis in ((last, last), (-1, -1)) else None

    def _other(self, node: onnx.NodeProto, i: int) -> tuple[float, float] | None:
        """The ends of the other one of two operands, where they are known."""
        return self.known.interval(node.input[1 - i]) if len(node.input) == 2 else None

    def _truth(self, derived: _Derived, holds: Callable[[float], bool]) -> _Derived | None:
        """A condition on the value; None where it is the same for the elements 0 and 1."""
        if derived.summed:
            return None
        zero, one = derived.at(0), derived.at(1)
        if zero is None or one is None or holds(zero) == holds(one):
            return None
        return _Derived() if holds(one) else _Derived(-1.0, 1.0, 1.0)

    def _to_bool(self, node: onnx.NodeProto) -> bool:
        to = self.known.integer(node, "to", TensorProto.UNDEFINED)
        return node.op_type == "Cast" and to == int(TensorProto.BOOL)

    # --- what an operator shows ---------------------------------------------------------------

    def _shown(self, node: onnx.NodeProto, i: int, derived: _Derived) -> Iterator[InputRole]:
        """The role that the value has as operand number `i` of an operator."""
        if derived.summed:
            if (ends := self._length(node, i)) is not None:
                low, high = derived.between(*ends)
                yield InputRole("filled", low, min(high, derived.summed))
            return
        true_is_shown = self._mask(node, i)
        if true_is_shown is not None:
            yield InputRole("mask" if true_is_shown == (derived.scale > 0) else "hidden")
        elif node.op_type == "Mul" and (after := self._after(node, i, derived)) is not None:
            yield from self._added(after)
        if self.is_float:
            return
        if node.op_type in _QUANTIZED and i in (0, 3):
            yield InputRole("number")
        if (extent := self._indexed(node, i)) is not None:
            yield InputRole("index", *derived.between(0, extent - 1))
        elif (ends := self._length(node, i)) is not None:
            yield InputRole("length", *derived.between(*ends))
        elif (chosen := self._choice(node, i)) is not None:
            yield InputRole("choice", *derived.between(chosen, chosen))

    def _added(self, term: _Derived) -> Iterator[InputRole]:
        """A large number that hides a score to which it is added, and is zero elsewhere."""
        if term.scale >= _HIDING and term.at(1) == 0:
            yield InputRole("mask")
        elif term.scale <= -_HIDING and term.at(0) == 0 and not self.is_float:
            yield InputRole("hidden")

    def _mask(self, node: onnx.NodeProto, i: int) -> bool | None:
        """Whether an element of a mask that is true takes part; None where it is no mask."""
        if (node.op_type, i) == ("Where", 0):
            chosen = self.known.interval(node.input[1])
            return chosen is None or chosen[1] > -_HIDING
        if self.is_float:
            return None  # ONNX's Attention adds it
        if (node.op_type, i) in (("Attention", 3), ("MultiHeadAttention", 4)):
            extents = self.known.shape(node, i)
            return None if extents is not None and len(extents) == 1 else True
        return True if (node.op_type, i) == ("EmbedLayerNormalization", 7) else None

    def _indexed(self, node: onnx.NodeProto, i: int) -> int | None:
        """The extent of what the operand indexes."""
        known = self.known
        match node.op_type, i:
            case "Gather" | "GatherElements" | "ScatterElements" | "Scatter", 1:
                return known.extent(node, 0, known.integer(node, "axis", 0))
            case "GatherND" | "ScatterND", 1:
                data, rows = known.shape(node, 0), known.shape(node, 1)
                first = known.integer(node, "batch_dims", 0)
                return min(data[first:][: rows[-1]], default=None) if data and rows else None
            case "OneHot", 0:
                depth = known.interval(node.input[1])
                return int(depth[0]) if depth else None
            case "EmbedLayerNormalization", 0 | 1:
                return known.extent(node, 2 + 2 * i, 0)
            case "TensorScatter", 2:
                axis = known.integer(node, "axis", -2)
                whole, written = known.extent(node, 0, axis), known.extent(node, 1, axis)
                return whole - written + 1 if whole and written else None
            case "RotaryEmbedding", _:
                return self._rotated(node, i)
        return None

    def _choice(self, node: onnx.NodeProto, i: int) -> float | None:
        """The number for which an If takes its first branch."""
        other = self._other(node, i) if node.op_type == "Equal" else None
        readers = self.known.readers.get(node.output[0], ())
        if other is None or other[0] != other[1] or not any(r.op_type == "If" for r, _ in readers):
            return None
        return other[0]

    def _rotated(self, node: onnx.NodeProto, i: int) -> int | None:
        """The rows of a rotation's tables that a position may name."""
        at, table = (1, 2) if node.domain == "com.microsoft" else (3, 1)
        rows, positions = self.known.extent(node, table, 0), self.known.shape(node, i)
        if i != at or rows is None:
            return None
        x = self.known.shape(node, 0)
        if positions == (1,) and x:  # that of the first element alone
            return rows - (self.known.extent(node, 0, -2 if len(x) == 4 else 1) or 1) + 1
        return rows

    def _length(self, node: onnx.NodeProto, i: int) -> tuple[float, float] | None:
        """The least and the largest length or position that the operand may be."""
        known = self.known
        most: int | None = None
        match node.op_type, i:
            case "LSTM" | "GRU" | "RNN", 4:
                most = known.extent(node, 0, known.integer(node, "layout", 0))
            case "ReverseSequence", 1:
                most = known.extent(node, 0, known.integer(node, "time_axis", 0))
            case "Attention", 3:
                most = known.extent(node, 0, 1)
            case ("Attention", 6) | ("MultiHeadAttention", 4):
                keys = known.shape(node, 1)
                most = known.extent(node, 1, -2 if keys and len(keys) == 4 else 1)
            case "GroupQueryAttention", 5:
                return self._last_positions(node)
        if most is None:
            return self._compared(node, i) if node.op_type in _COMPARISONS else None
        return 1, most

    def _last_positions(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """The least and the largest last position of a sequence in a cache. Where nothing tells how
        many positions are new, all are filled; so is the cache of a window, of which the rest would
        be anything."""
        whole = self.known.interval(node.input[6])
        if whole is None:
            return None
        past = self.known.extent(node, 3, 2)
        if past is not None and self.known.integer(node, "sliding_window_cache", 0):
            full = min(past, whole[0])
            spare = self.known.integer(node, "local_window_size", past) < past
            return full - 1, (full if spare else whole[0]) - 1
        new = self.known.extent(node, 0, 1) or (whole[0] - past if past is not None else 0)
        return (new if 0 < new <= whole[0] else whole[0]) - 1, whole[0] - 1

    def _compared(self, node: onnx.NodeProto, i: int) -> tuple[float, float] | None:
        """The numbers that divide the range with which they are compared."""
        other = self._other(node, i)
        if other is None or other[0] == other[1]:
            return None
        low, high = _DIVIDING.get((node.op_type, i), (0, 0))
        return other[0] + low, other[1] + high
