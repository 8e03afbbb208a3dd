"""Computes in numpy what TVM's importer leaves to compute of constants alone.

TVM's own constant folding compiles a program for each such operator, which takes some 30 ms: a
model with fifty batch normalizations waits ten seconds for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.graph.dataflow import array
from mcfuser.graph.tensors import numpy_dtype, tensor_over
from mcfuser.graph.weights import aligned, aligned_copy

_Compute = Callable[[relax.Call, list[NDArray[Any]]], NDArray[Any] | None]
"""The result of a call, given the elements of its tensors; None where it is TVM's to compute."""

_FLOATS = frozenset({"float16", "float32", "float64"})
_DTYPES = _FLOATS | {"int32", "int64", "bool"}
"""Element types that numpy computes with as TVM does: of float16, each result is that of float32,
rounded."""
_BYTES = frozenset({"int8", "uint8", "int32"})
_WITHIN: Mapping[str, tuple[frozenset[str], ...]] = {
    "relax.astype": (_BYTES | {"int64", "bool"}, _FLOATS),
    "relax.dequantize": (_BYTES | {"float32"},),
    "relax.divide": (_FLOATS,),
    "relax.sqrt": (_FLOATS,),
}
"""Operators that are the same in numpy only where operands and results are all of some element
types."""


def _reshaped(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any]:
    return given[0].reshape([int(d) for d in call.ty.shape])


def _permuted(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any]:
    axes = call.attrs.axes
    return given[0].transpose(None if axes is None else [int(a) for a in axes])


def _cast(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(given[0], str(call.ty.dtype))


def _taken(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Rows of a table; None where one of them is not in it, which TVM's modes tell apart."""
    table, rows = given
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    extent = table.size if axis is None else table.shape[axis]
    if rows.size and not 0 <= rows.min() <= rows.max() < extent:
        return None
    return table.take(rows, axis)


def _sliced(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any] | None:
    """A part; None where a bound is not known or counts from the end, or it is taken backwards."""
    numbers = [n for some in call.args[1:] for n in some.fields]
    if not all(isinstance(n, tvm.tirx.IntImm) and n.value >= 0 for n in numbers):
        return None
    axes, *bounds = ([int(n) for n in some.fields] for some in call.args[1:])
    part = [slice(None)] * given[0].ndim
    for axis, *where in zip(axes, *bounds, strict=True):
        part[axis] = slice(*where)
    return given[0][tuple(part)]


def _extents(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any] | None:
    """The extents of a shape; None where one of them is known only at run time."""
    values = call.args[0].ty.values
    if values is None or not all(isinstance(v, tvm.tirx.IntImm) for v in values):
        return None
    return np.asarray([int(v) for v in values], np.int64)


def _dequantized(call: relax.Call, given: list[NDArray[Any]]) -> NDArray[Any]:
    """Integers less a zero point, times a scale: one of each, or a row of them along an axis."""
    whole, scale, zero = given
    along = [1] * whole.ndim
    if whole.ndim:
        along[int(call.attrs.axis)] = -1
    zero, scale = (x.reshape(along if x.size > 1 else ()) for x in (zero, scale))
    shifted: NDArray[Any] = whole.astype(np.int32) - zero.astype(np.int32)
    real: NDArray[Any] = np.multiply(shifted.astype(np.float32), scale)
    return real


def _elementwise(compute: Callable[..., NDArray[Any]]) -> _Compute:
    return lambda call, given: compute(*given)


_COMPUTED: Mapping[str, _Compute] = {
    "relax.add": _elementwise(np.add),
    "relax.astype": _cast,
    "relax.dequantize": _dequantized,
    "relax.divide": _elementwise(np.divide),
    "relax.expand_dims": _reshaped,
    "relax.less": _elementwise(np.less),
    "relax.multiply": _elementwise(np.multiply),
    "relax.negative": _elementwise(np.negative),
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.shape_to_tensor": _extents,
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.squeeze": _reshaped,
    "relax.strided_slice": _sliced,
    "relax.subtract": _elementwise(np.subtract),
    "relax.take": _taken,
    "relax.where": _elementwise(np.where),
}


def precomputed(module: tvm.IRModule) -> tvm.IRModule:
    """The module, which is changed, with operators of constants alone replaced by their results.

    An operator that is not among those that numpy computes as TVM does stays.
    """
    module["main"] = _Precomputed().visit_expr(module["main"])
    return module


def _stored(elements: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Elements of a type as TVM shares them: a transposed weight is copied once, by all cores."""
    return aligned(elements) if elements.dtype == dtype else aligned_copy(elements, dtype)


@relax.expr_functor.mutator
class _Precomputed(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        compute = _COMPUTED.get(getattr(call.op, "name", ""))
        if compute is None:
            return call
        sizes = (relax.ShapeType, relax.TupleType)
        given = [self._constant(a) for a in call.args if not isinstance(a.ty, sizes)]
        known = [g for g in given if g is not None]
        if len(known) < len(given):
            return call
        call = self.builder_.normalize(call)
        dtype = str(call.ty.dtype)
        dtypes = {dtype, *(str(g.dtype) for g in known)}
        if not any(dtypes <= some for some in _WITHIN.get(call.op.name, (_DTYPES,))):
            return call
        with np.errstate(all="ignore"):  # what is infinite or no number is so in TVM, too
            result = compute(call, known)
        if result is None:
            return call
        return relax.const(tensor_over(_stored(np.asarray(result), numpy_dtype(dtype))))

    def _constant(self, value: relax.Expr) -> NDArray[Any] | None:
        """The elements of a constant, or of a variable that is bound to one; None of another."""
        while isinstance(value, relax.Var):
            value = self.lookup_binding(value)
        return array(value) if isinstance(value, tvm.ir.GenericConst) else None
