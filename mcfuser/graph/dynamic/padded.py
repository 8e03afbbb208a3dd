"""The graph of a bucket while it is written: nodes, masks and run-time extents."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.dynamic.axes import Point
from mcfuser.graph.dynamic.facts import ShapeFacts
from mcfuser.graph.dynamic.layout import (
    Factor,
    Layout,
    Operand,
    PaddedDimension,
    Sign,
    dimension,
    extents,
    is_dynamic,
    plain,
    room,
    zeroed,
)
from mcfuser.graph.dynamic.length import (
    Least,
    Length,
    LengthProduct,
    LengthSum,
    Quotient,
    Symbol,
    evaluate,
    number,
    product,
)
from mcfuser.graph.read import described, opset
from mcfuser.graph.weights import OnnxArray

INT64 = TensorProto.INT64
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)

_BASES = 16
"""Known lengths of which another one may be a sum of multiples."""


@dataclass
class PaddedGraph:
    """The nodes of a bucket's graph so far, and what is known of its values.

    `points` are extents within the bucket, its upper ones first, and `facts` those of the model at
    each of them. `inputs` has the graph's input that holds each run-time extent, by the extent's
    name. `found` has the name of the extent that elements decide, by the value that has it; what
    holds it is among `inputs` once it is written. `known` are values of the model that depend on
    shapes alone. `lengths` says what the run-time extents of values are, by their numbers at the
    points.
    """

    points: Sequence[Point]
    facts: Sequence[ShapeFacts]
    inputs: dict[str, str]
    found: Mapping[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    known: dict[str, OnnxArray] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)
    lengths: dict[tuple[int, ...], Length] = field(default_factory=dict)
    written: dict[object, str] = field(default_factory=dict)
    count: int = 0

    # --- what is known of the model -------------------------------------------------------------

    @property
    def upper(self) -> ShapeFacts:
        return self.facts[0]

    @property
    def opset(self) -> int:
        return opset(self.upper.model.proto)

    def factor(self, *numbers: int) -> Factor:
        """A factor that is a product of numbers at every point."""
        return Factor((int(np.prod(numbers)),) * len(self.points))

    def shapes(self, name: str) -> list[tuple[int, ...]] | None:
        """The shape of a value of the model at every point; None where one is not known."""
        found = [f.shape(name) for f in self.facts]
        known = [s for s in found if s is not None]
        return known if len(known) == len(found) and len({len(s) for s in known}) == 1 else None

    def layout(self, name: str) -> Layout | None:
        """The layout of a value each of whose dimensions is one extent; None where its shape is not
        known at every point."""
        shapes = self.shapes(name)
        if shapes is None:
            return None
        return tuple(dimension(Factor(tuple(e))) for e in zip(*shapes, strict=True))

    def arrays(self, name: str) -> list[np.ndarray[Any, Any]] | None:
        """The elements at every point of a value that depends on no input; None of any other."""
        if not all(f.is_constant(name) for f in self.facts):
            return None
        found = [f.array(name) for f in self.facts]
        return None if any(a is None for a in found) else [np.asarray(a) for a in found]

    def steady(self, name: str) -> bool:
        """Whether a value that depends on no input has the same elements at every point, as far as
        its extents go."""
        if all(name not in f.from_shapes for f in self.facts):
            return True
        arrays = self.arrays(name)
        if arrays is None:
            return False
        whole = arrays[0]
        return all(
            a.ndim == whole.ndim
            and all(x <= y for x, y in zip(a.shape, whole.shape, strict=True))
            and np.array_equal(a, whole[tuple(map(slice, a.shape))], equal_nan=a.dtype.kind == "f")
            for a in arrays[1:]
        )

    def length(self, dim_extents: tuple[int, ...]) -> Length | None:
        """What a run-time extent is, given its numbers at the points; None where that is not known.

        A sum of multiples of the inputs' extents is found by its numbers.
        """
        if dim_extents not in self.lengths and (made := self._fitted(dim_extents)) is not None:
            self.lengths[dim_extents] = made
        return self.lengths.get(dim_extents)

    def _fitted(self, wanted: tuple[int, ...]) -> Length | None:
        """A sum of multiples of one or two lengths that are known, the inputs' extents first, or
        the smaller one of a length and a number."""
        if len(set(wanted)) == 1:
            return number(wanted[0])
        known = [(n, length) for n, length in self.lengths.items() if len(set(n)) > 1]
        most = max(wanted)
        for numbers, length in known:
            if tuple(min(n, most) for n in numbers) == wanted:
                return Least(length, most)
        for chosen in (*((k,) for k in known), *itertools.combinations(known[:_BASES], 2)):
            columns = [*(n for n, _ in chosen), (1,) * len(wanted)]
            rows = np.asarray(columns, float).T
            *times, constant = np.rint(np.linalg.lstsq(rows, np.asarray(wanted, float))[0])
            terms = tuple((one, int(t)) for (_, one), t in zip(chosen, times, strict=True) if t)
            length = LengthSum(terms, int(constant))
            if all(evaluate(length, p) == w for p, w in zip(self.points, wanted, strict=True)):
                return length
        return None

    # --- what is written ------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}/padded_{self.count}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Writes an operator of ONNX's with one result; its name."""
        name = self.fresh(kind)
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def const(self, values: ArrayLike, dtype: int) -> str:
        """Writes a constant, once; its name."""
        array = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(dtype))
        key = ("const", dtype, array.shape, array.tobytes())
        if key not in self.written:
            name = self.fresh("constant")
            self.constants.append(numpy_helper.from_array(array, name))
            self.written[key] = name
        return self.written[key]

    def ints(self, *values: int) -> str:
        """Writes a row of int64; its name."""
        return self.const(np.asarray(values, np.int64), INT64)

    def scalar(self, row: str) -> str:
        """Writes a row of one element as a number; its name."""
        return self.op("Reshape", row, self.ints())

    def write_length(self, length: Length) -> str:
        """Writes a run-time extent as a row of one int64; its name."""
        if length not in self.written:
            self.written[length] = self._length(length)
        return self.written[length]

    def _length(self, length: Length) -> str:
        match length:
            case Symbol(name):
                return self.inputs[name]
            case LengthProduct(one, other):
                return self.op("Mul", self.write_length(one), self.write_length(other))
            case Quotient(divided, divisor):
                return self.op("Div", self.write_length(divided), self.ints(divisor))
            case Least(bounded, most):
                return self.op("Min", self.write_length(bounded), self.ints(most))
            case LengthSum(terms, constant):
                parts = [
                    self.op("Mul", self.write_length(one), self.ints(times))
                    if times != 1
                    else self.write_length(one)
                    for one, times in terms
                ]
                if constant or not parts:
                    parts.append(self.ints(constant))
                whole = parts[0]
                for part in parts[1:]:
                    whole = self.op("Add", whole, part)
                return whole

    def length_name(self, factor: Factor, node: onnx.NodeProto) -> str:
        """Writes the run-time extent of a factor; its name. Raises ModelError where it is not
        known."""
        length = self.length(factor.extents)
        if length is None:
            raise self.refusal(
                node, f"an extent of it, {factor.upper} here, is no sum of the inputs' extents"
            )
        return self.write_length(length)

    def valid(self, layout: Layout, dims: Sequence[int], node: onnx.NodeProto) -> str:
        """Writes a bool tensor that is true at the positions of some dimensions of a value that are
        not padded, and broadcasts over the value; its name."""
        rank = len(layout)
        masks = [self._valid(layout[d], rank - 1 - d, node) for d in dims]
        whole = masks[0]
        for mask in masks[1:]:
            whole = self.op("And", whole, mask)
        return whole

    def _valid(self, dim: PaddedDimension, trailing: int, node: onnx.NodeProto) -> str:
        key = ("valid", tuple(f.extents for f in dim), trailing)
        if key not in self.written:
            whole = None
            size = room(dim)
            inner = size
            for f in dim:
                inner //= f.upper
                if f.dynamic:
                    at = (np.arange(size) // inner % f.upper).reshape(size, *[1] * trailing)
                    less = self.op("Less", self.const(at, INT64), self.length_name(f, node))
                    whole = less if whole is None else self.op("And", whole, less)
            assert whole is not None
            self.written[key] = whole
        return self.written[key]

    def masked(
        self, x: Operand, dims: Sequence[int], fill: float, dtype: int, node: onnx.NodeProto
    ) -> Operand:
        """The value with `fill` in the padded positions of some of its dimensions."""
        key = ("masked", x.name, tuple(dims), fill)
        if key not in self.written:
            mask = self.valid(x.layout, dims, node)
            filled = self.const(_number(fill, dtype), dtype)
            self.written[key] = self.op("Where", mask, x.name, filled)
        filled_with = zeroed if fill == 0 else plain
        layout = tuple(filled_with(d) if i in dims else d for i, d in enumerate(x.layout))
        whole = all(i in dims or not is_dynamic(d) for i, d in enumerate(x.layout))
        finite = bool(np.isfinite(fill)) and (x.finite or whole)
        sign: Sign = x.sign if fill == 0 and x.sign != "positive" else "any"
        return Operand(self.written[key], layout, finite, sign)

    def compacted(self, x: Operand, axis: int, node: onnx.NodeProto) -> Operand:
        """The value with one run-time extent in a dimension that holds several: the valid elements
        come first."""
        dim = x.layout[axis]
        if len(dim) < 2 or not is_dynamic(dim):
            return x
        key = ("compacted", x.name, axis)
        whole = extents(dim, len(self.points))
        if key not in self.written:
            lengths = [self.length(f.extents) for f in dim]
            if (whole_length := product(lengths)) is not None:
                self.lengths.setdefault(whole, whole_length)
            rest, source = self.const(np.arange(whole[0]), INT64), None
            stride = 1
            for f in reversed(dim):  # the positions among the valid elements, innermost first
                length = self.length_name(f, node)
                if self.found and f.dynamic:  # nothing may be found
                    length = self.op("Max", length, self.ints(1))
                at = self.op("Mul", self.op("Mod", rest, length), self.ints(stride))
                source = at if source is None else self.op("Add", source, at)
                rest, stride = self.op("Div", rest, length), stride * f.upper
            assert source is not None
            self.written[key] = self.op("Gather", x.name, source, axis=axis)
        layout = tuple((Factor(whole),) if d == axis else o for d, o in enumerate(x.layout))
        return Operand(self.written[key], layout, x.finite, x.sign)

    # --- refusals -------------------------------------------------------------------------------

    def refusal(self, node: onnx.NodeProto, why: str) -> ModelError:
        """The error that says why a node cannot be computed at run-time extents."""
        where = f"{described(node, self.opset)} cannot be computed at extents known at run time"
        return ModelError(f"{where}: {why}; fix the extent with --shape")

    def explained(self, node: onnx.NodeProto, name: str, layout: Layout) -> None:
        """Raises ModelError where a layout is not that of a value of the model."""
        shapes = self.shapes(name)
        if shapes is None:
            raise self.refusal(node, f"the shape of its result '{name}' depends on elements")
        found = [extents(d, len(self.points)) for d in layout]
        wanted = list(map(tuple, zip(*shapes, strict=True)))
        if found != wanted:
            raise self.refusal(
                node, f"the run-time shape of its result '{name}' does not follow from its inputs'"
            )


def _number(fill: float, dtype: int) -> ArrayLike:
    """A number in the range of a type: infinities are its least and largest integer."""
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
    if kind.kind in "iu" and np.isinf(fill):
        return np.asarray(np.iinfo(kind).max if fill > 0 else np.iinfo(kind).min)
    return np.asarray(fill)
