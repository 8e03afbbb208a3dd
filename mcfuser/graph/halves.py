"""Makes two products of one whose result is cut into halves that meet again elementwise.

A gate is often exported as one product of twice as many columns, the halves of which are
multiplied. As two products, each with its columns of the weights, they are like those of a model
that has them apart: they share a kernel with what joins them (mcfuser.graph.regions), and nobody
stores the columns of either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax

from mcfuser.graph.convolution import convolution
from mcfuser.graph.dataflow import (
    Dataflow,
    array,
    computed_from,
    dataflow,
    extents,
    part_of,
    reachable,
    shape,
)
from mcfuser.graph.matching import called, calls_rewritten, with_arguments
from mcfuser.graph.views import cut_along

_SLICE = "relax.strided_slice"


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
        made = with_arguments(self.product, [x, part_of(matrix, self.weights, begin, end)])
        if self.added is None:
            return made
        rank = len(shape(self.added))

        def argument(a: relax.Expr) -> relax.Expr:
            if array(a) is None:
                return made
            at = self.columns - rank + len(shape(a))
            return a if at < 0 or shape(a)[at] == 1 else part_of(a, at, begin, end)

        return with_arguments(self.added, [argument(a) for a in self.added.args])


def halves_apart(function: relax.Function) -> relax.Function:
    """The function with two products in the place of each whose halves meet elementwise, and are
    read for nothing else."""
    if _SLICE not in called(function.body):
        return function
    flow = dataflow(function)
    found = (_wide_product(flow, v) for v in flow.order)
    wide = dict(pair for pair in found if pair is not None and _halves_meet(flow, *pair))

    def rewriter(call: relax.Call) -> relax.Expr:
        made = wide.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        columns = _columns(call, made.columns) if made is not None else None
        return made.part(*columns) if made is not None and columns is not None else call

    return calls_rewritten(function, {_SLICE}, rewriter) if wide else function


def _wide_product(flow: Dataflow, v: relax.Var) -> tuple[relax.Var, WideProduct] | None:
    """The value that has the columns of a product with constant weights, and that product, with the
    constant that is added to it; None if `v` is no such product."""
    value = flow.values[v]
    if flow.kinds[v] != "product" or (weights := array(value.args[1])) is None:
        return None
    if value.op.name == "relax.matmul":
        if weights.ndim < 2 or not isinstance(value.args[0], relax.Var):
            return None
        made = WideProduct(value, weights.ndim - 1, len(shape(v)) - 1)
    else:
        found = convolution(value)
        if found is None or found.groups > 1:
            return None
        made = WideProduct(value, 0, 1)
    readers = flow.readers.get(v, ())
    if len(readers) == 1 and flow.operator(readers[0]) == "add" and v not in flow.outputs:
        add = flow.values[readers[0]]
        constant = any(array(a) is not None for a in add.args)
        if constant and extents(readers[0]) == extents(v):
            return readers[0], replace(made, added=add)
    return v, made


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
    found = cut_along(value)
    return found[1:] if found is not None and found[0] == at else None
