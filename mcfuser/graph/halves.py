"""Makes two products of one whose result is cut into halves that meet again elementwise.

A gate is often exported as one product of twice as many columns, the halves of which are
multiplied. As two products, each with its columns of the weights, they are like those of a model
that has them apart: they share a kernel with what joins them (mcfuser.graph.regions), and nobody
stores the columns of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import relax

from mcfuser.graph.convolution import convolution
from mcfuser.graph.dataflow import (
    Dataflow,
    array,
    computed_from,
    dataflow,
    extents,
    reachable,
    shape,
)
from mcfuser.graph.matching import called, calls_rewritten, with_arguments
from mcfuser.graph.tensors import tensor_over
from mcfuser.graph.weights import OnnxArray, aligned

_SLICE = "relax.strided_slice"
_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


@dataclass(frozen=True)
class WideProduct:
    """A `product` with constant weights, which have its columns along the dimension `weights`, and
    its result along `columns`; and the constant that is `added` to it, if there is one, as it is
    called."""

    product: relax.Call
    weights: int
    columns: int
    added: relax.Call | None = None

    def part(self, begin: int, end: int) -> relax.Expr:
        """The same of some columns alone."""
        x, matrix = self.product.args
        made = with_arguments(self.product, [x, _cut(matrix, self.weights, begin, end)])
        if self.added is None:
            return made
        rank = len(shape(self.added))

        def argument(a: relax.Expr) -> relax.Expr:
            if array(a) is None:
                return made
            at = self.columns - rank + len(shape(a))
            return a if at < 0 or shape(a)[at] == 1 else _cut(a, at, begin, end)

        return with_arguments(self.added, [argument(a) for a in self.added.args])


def halves_apart(function: relax.Function) -> relax.Function:
    """The function with two products in the place of each whose halves meet elementwise, and are
    read for nothing else."""
    if _SLICE not in called(function.body):
        return function
    flow = dataflow(function)
    wide = {
        row: made
        for v in flow.order
        for row, made in _wide_products(flow, v)
        if _halves_meet(flow, row, made)
    }

    def rewriter(call: relax.Call) -> relax.Expr:
        made = wide.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        columns = _columns(call, made.columns) if made is not None else None
        return made.part(*columns) if made is not None and columns is not None else call

    return calls_rewritten(function, {_SLICE}, rewriter) if wide else function


def _wide_products(flow: Dataflow, v: relax.Var) -> Iterator[tuple[relax.Var, WideProduct]]:
    """The value that has the columns of a product with constant weights, with the constant that is
    added to them, if `v` is such a product."""
    value = flow.values[v]
    if flow.kinds[v] != "product" or (weights := array(value.args[1])) is None:
        return
    if value.op.name == "relax.matmul":
        if weights.ndim < 2 or not isinstance(value.args[0], relax.Var):
            return
        made = WideProduct(value, weights.ndim - 1, len(shape(v)) - 1)
    elif value.op.name in _CONVOLUTIONS:
        found = convolution(value)
        if found is None or found.groups > 1:
            return
        made = WideProduct(value, 0, 1)
    else:
        return
    readers = flow.readers.get(v, ())
    if len(readers) == 1 and flow.operator(readers[0]) == "add" and v not in flow.outputs:
        add = flow.values[readers[0]]
        constant = any(array(a) is not None for a in add.args)
        if constant and extents(readers[0]) == extents(v):
            yield readers[0], WideProduct(value, made.weights, made.columns, add)
            return
    yield v, made


def _halves_meet(flow: Dataflow, row: relax.Var, made: WideProduct) -> bool:
    """Whether a value is read by two slices of equally many columns alone, and these only for one
    value that is computed from both element by element."""
    halves = flow.readers.get(row, ())
    if len(halves) != 2 or row in flow.outputs:
        return False
    columns = [_columns(flow.values[h], made.columns) for h in halves]
    if None in columns or extents(halves[0]) != extents(halves[1]):
        return False
    after = [reachable(flow, h, ("elementwise",)) for h in halves]
    joined = next((v for v in after[0] if v in after[1]), None)
    if joined is None:
        return False
    inner = computed_from(flow, joined, {*after[0], *after[1]})
    return all(
        v is joined or (v not in flow.outputs and {*flow.readers.get(v, ())} <= {*inner})
        for v in inner
    )


def _columns(value: relax.Expr, at: int) -> tuple[int, int] | None:
    """Where a slice begins and ends along a dimension; None if it is no slice, leaves elements out,
    or cuts along another one, too."""
    if not isinstance(value, relax.Call) or value.op.name != _SLICE:
        return None
    axes, begins, _, *steps = ([int(x) for x in a.fields] for a in value.args[1:])
    rank = len(shape(value))
    if [a % rank for a in axes] != [at] or any(s != 1 for row in steps for s in row):
        return None
    begin = begins[0] if begins[0] >= 0 else begins[0] + shape(value.args[0])[at]
    return begin, begin + shape(value)[at]


def _cut(constant: relax.Expr, at: int, begin: int, end: int) -> relax.Expr:
    """Some positions of a constant along a dimension."""
    elements = array(constant)
    assert elements is not None
    part: OnnxArray = np.moveaxis(np.moveaxis(elements, at, 0)[begin:end], 0, at)
    return relax.const(tensor_over(aligned(part)), str(constant.ty.dtype))
