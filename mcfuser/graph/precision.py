"""Decides in which type each value of a float32 module is computed and stored where products are to
be of a narrow type (float16 or bfloat16).

Every operator is of one class (`operator_class`):

* a product reads and writes narrow values; its sum is float32;
* a map of one rounding (sums, products, maxima) and what only moves elements follow their operands;
* everything else is computed in float32: reductions, norms, softmax, exponentials, roots, divisions
  by what is computed, comparisons, conversions of integers, and operators that are not known here.

A value has one type for all that read it. It is stored narrow where a product reads it, where it is
the sum that a norm reads (a residual), and where it was computed narrow. Between operators of the
third class values stay float32, and so do scores with their masks up to a softmax: a mask of
-3.4e38 would be minus infinity in float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax

from mcfuser.chain import LOWEST, TF32
from mcfuser.graph.dataflow import Dataflow, array, dtype, extents

WIDE = "float32"
"""The type of the values that are narrowed."""
NARROW = ("float16", "bfloat16")
"""The types that they may be narrowed to."""

OperatorClass = Literal["product", "map", "move", "wide"]

PRODUCTS = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
"""Relax's operators that multiply matrices, without their prefix."""
_MAPS = frozenset({
    "add", "subtract", "multiply", "divide", "negative", "abs", "maximum", "minimum", "where",
    "clip", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.prelu",
})  # fmt: skip
_MOVES = frozenset({
    "reshape", "flatten", "expand_dims", "squeeze", "permute_dims", "concat", "stack", "split",
    "strided_slice", "dynamic_strided_slice", "take", "gather_elements", "gather_nd",
    "broadcast_to", "tile", "repeat", "flip", "nn.pad", "nn.pixel_shuffle", "item", "nn.max_pool1d",
    "nn.max_pool2d", "nn.max_pool3d",
})  # fmt: skip
_SCORES = frozenset({"nn.softmax", "nn.log_softmax", "exp"})
_NORMS = frozenset({"nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm"})
_SUMS = frozenset({"sum", "mean", "variance", "std"})


@dataclass(frozen=True, slots=True)
class Types:
    """The float32 values of a function that are stored narrow (some may be its parameters), and the
    values that are computed in float32."""

    narrow: frozenset[relax.Var]
    computed_wide: frozenset[relax.Var]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """How a model was narrowed, for the report: the type, the products whose operands have it,
    those that were left float32, and the other operators that are computed in float32."""

    dtype: str
    narrow_products: int
    float32_products: int
    float32_operators: int


def types(flow: Dataflow, parameters: tuple[relax.Var, ...], narrow: str) -> Types:
    """The types of the values of a function whose graph is `flow`; `narrow` is one of NARROW."""
    return _Deciding(flow, parameters, narrow).decided()


def fits(constant: NDArray[np.generic], narrow: str) -> bool:
    """Whether a type has numbers near those of a float32 constant: no finite one is beyond its
    largest number, and the constant does not vanish as a whole below its smallest normal one."""
    kind = ml_dtypes.finfo(narrow)  # type: ignore[no-untyped-call]
    least, most = float(constant.min(initial=0.0)), float(constant.max(initial=0.0))
    if not (np.isfinite(least) and np.isfinite(most)):
        finite = constant[np.isfinite(constant)]
        least, most = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    largest = max(-least, most)
    return largest == 0 or float(kind.smallest_normal) <= largest <= float(kind.max)


def is_wide(value: relax.Expr) -> bool:
    """Whether a value is a float32 tensor, or a tuple of nothing else."""
    if isinstance(value.ty, relax.TupleType):
        return bool(value.ty.fields) and all(
            isinstance(f, relax.TensorType) and str(f.dtype) == WIDE for f in value.ty.fields
        )
    return isinstance(value.ty, relax.TensorType) and dtype(value) == WIDE


def operands(value: relax.Expr) -> Iterator[relax.Expr]:
    """The operands of an expression; the fields of tuples among them, one by one."""
    if isinstance(value, relax.Call):
        inner = value.args
    elif isinstance(value, relax.Tuple):
        inner = value.fields
    elif isinstance(value, relax.TupleGetItem):
        inner = [value.tuple_value]
    else:
        inner = []
    for a in inner:
        if isinstance(a, relax.Tuple):
            yield from operands(a)
        else:
            yield a


def operator_class(value: relax.Expr, narrow: str) -> OperatorClass:
    """The class of the operator of an expression. A product or a map with a constant that does not
    fit the narrow type is computed in float32."""
    if isinstance(value, relax.TupleGetItem):
        return "move"
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return "wide"
    name = value.op.name.removeprefix("relax.")
    if not _all_fit(value, narrow):
        return "wide"
    if name in PRODUCTS:
        return "product" if all(is_wide(a) for a in value.args) else "wide"
    if name in _MOVES:
        return "move"
    if name not in _MAPS or _squares(name, value):
        return "wide"
    return "wide" if name == "divide" and array(value.args[1]) is None else "map"


def _all_fit(value: relax.Call, narrow: str) -> bool:
    constants = [array(a) for a in operands(value) if is_wide(a)]
    if value.op.name == "relax.nn.pad" and not is_lowest(value):
        constants.append(np.array(float(value.attrs.pad_value)))
    return all(c is None or fits(c, narrow) for c in constants)


def is_lowest(pad: relax.Call) -> bool:
    """Whether what is written around a value is the lowest number of float32, as for maxima."""
    return float(pad.attrs.pad_value) == LOWEST


def _squares(name: str, value: relax.Call) -> bool:
    """Whether a map multiplies a value by itself: the result has twice the exponent."""
    return name == "multiply" and bool(value.args[0].same_as(value.args[1]))


class _Deciding:
    """The decisions for one function."""

    def __init__(self, flow: Dataflow, parameters: tuple[relax.Var, ...], narrow: str) -> None:
        self.flow = flow
        self.classes = {v: operator_class(flow.values[v], narrow) for v in flow.order}
        self.backward = (*reversed(flow.order), *parameters)
        self.every = tuple(v for v in (*parameters, *flow.order) if is_wide(v))
        self.fed = self._reaching(self._is_product_operand, ("move",))
        scores = self._reaching(lambda r: self._name(r) in _SCORES, ("map", "move"))
        self.narrowed = {v for v in self.every if v in self.fed or self._is_residual(v, scores)}
        self.moved_maps = self._moved_maps()
        self.computed_wide = {v for v in flow.order if self.classes[v] == "wide"}
        self.parameters = frozenset(parameters)

    def decided(self) -> Types:
        before = -1
        while len(self.computed_wide) != before:
            before = len(self.computed_wide)
            self._forward()
            self._backward()
        self._moved_narrow()
        narrow = frozenset(v for v in self.every if self._is_narrow(v))
        return Types(narrow, frozenset(self.computed_wide))

    def _forward(self) -> None:
        """What follows its operands is computed in float32 where one of them is float32."""
        for v in self.flow.order:
            if self.classes[v] in ("map", "move") and any(
                isinstance(a, relax.Var) and is_wide(a) and not self._is_narrow(a)
                for a in operands(self.flow.values[v])
            ):
                self.computed_wide.add(v)

    def _backward(self) -> None:
        """A map, and what moves its result, are computed in float32 where nothing but operators in
        float32, or a result of the function, reads them."""
        for v in reversed(self.flow.order):
            if v in self.narrowed or not (self.classes[v] == "map" or v in self.moved_maps):
                continue
            if all(r in self.computed_wide for r in self.flow.readers.get(v, ())):
                self.computed_wide.add(v)

    def _moved_narrow(self) -> None:
        """What only moves elements that are stored narrow moves these: what reads them in float32
        casts what it reads. The parts of a vector of scales and shifts are cast where they are
        used, and not the whole vector once for each."""
        for v in self.flow.order:
            moved = self._moved(v)
            if v in self.computed_wide and moved and all(map(self._is_narrow, moved)):
                self.computed_wide.remove(v)

    def _moved(self, v: relax.Var) -> list[relax.Var]:
        """The float32 values whose elements a value has that was moved; none where some are
        constants."""
        if self.classes[v] != "move":
            return []
        moved = [a for a in operands(self.flow.values[v]) if is_wide(a)]
        return moved if all(isinstance(a, relax.Var) for a in moved) else []

    def _moved_maps(self) -> set[relax.Var]:
        """The values that have the elements of maps' results, and of nothing that is stored
        narrow."""
        found = set[relax.Var]()
        for v in self.flow.order:
            moved = self._moved(v)
            if moved and all(
                a not in self.narrowed and (a in found or self.classes.get(a) == "map")
                for a in moved
            ):
                found.add(v)
        return found

    def _is_narrow(self, v: relax.Var) -> bool:
        computed = v not in self.computed_wide and v not in self.parameters
        return v in self.narrowed or (is_wide(v) and computed)

    def _name(self, v: relax.Var) -> str:
        return self.flow.operator(v)

    def _is_product_operand(self, reader: relax.Var) -> bool:
        return self.classes[reader] == "product"

    def _reaching(
        self, ends: Callable[[relax.Var], bool], through: tuple[OperatorClass, ...]
    ) -> set[relax.Var]:
        """The values that a reader for which `ends` holds reads, directly or past readers of the
        classes `through`."""
        found = set[relax.Var]()
        for v in self.backward:
            readers = self.flow.readers.get(v, ())
            if any(ends(r) or (r in found and self.classes[r] in through) for r in readers):
                found.add(v)
        return found

    def _is_residual(self, v: relax.Var, scores: set[relax.Var]) -> bool:
        """Whether a value is what a norm reads, or a sum of two values that is reduced, or the
        result of a product with its bias, or plus what is broadcast, that is reduced and read
        elsewhere, and not scores: it is stored, so it is stored narrow."""
        value = self.flow.values.get(v)
        if value is None or v in scores:
            return False
        readers = self.flow.readers.get(v, ())
        if any(self._name(r) in _NORMS for r in readers):
            return True
        if self._name(v) != "add":
            return False
        seen = self._past_moves(v)
        reduced = any(
            self._name(r) in _SUMS or _squares(self._name(r), self.flow.values[r]) for r in seen
        )
        both = all(isinstance(a, relax.Var) and extents(a) == extents(v) for a in operands(value))
        return reduced and (both or (len(seen) > 1 and self._is_biased(v)))

    def _past_moves(self, v: relax.Var) -> set[relax.Var]:
        """The readers of a value, and those of what only moves its elements."""
        seen = set[relax.Var]()
        for r in self.flow.readers.get(v, ()):
            seen |= self._past_moves(r) if self.classes[r] == "move" else {r}
        return seen

    def _is_biased(self, v: relax.Var) -> bool:
        """Whether a sum is that of a product's result, and of constants and values that are
        repeated along some dimensions."""
        whole = _elements(v)
        while True:
            moved = operands(self.flow.values[v])
            terms = [a for a in moved if isinstance(a, relax.Var) and _elements(a) == whole]
            if len(terms) != 1:
                return False
            (v,) = terms
            kind = self.classes.get(v)  # None: a parameter's
            if kind is None or kind == "product":
                return kind == "product"
            if kind != "move" and self._name(v) != "add":
                return False


def _elements(v: relax.Var) -> int | None:
    shape = extents(v)
    return math.prod(shape) if shape is not None else None


def rounded(flow: Dataflow) -> Narrowing:
    """How many of a function's products are of float32 values, which kernels may round to TF32, and
    how many other operators compute in float32."""
    calls = _on_float32(flow)
    products = sum(flow.kinds[v] == "product" for v in calls)
    return Narrowing(TF32, products, 0, len(calls) - products)


def counted(flow: Dataflow, decided: Types, narrow: str) -> Narrowing:
    """What was made of the operators of a function on float32 values."""
    calls = _on_float32(flow)
    wide = sum(v in decided.computed_wide for v in calls)
    products = [v for v in calls if flow.kinds[v] == "product"]
    left = sum(v in decided.computed_wide for v in products)
    return Narrowing(narrow, len(products) - left, left, wide - left)


def _on_float32(flow: Dataflow) -> list[relax.Var]:
    """The results of a function's operators that read float32 values."""
    return [
        v for v, value in flow.values.items()
        if isinstance(value, relax.Call) and any(map(is_wide, operands(value)))
    ]  # fmt: skip
