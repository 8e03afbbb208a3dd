"""One module of several buckets: `main` takes inputs of any shape in the ranges, and calls the
smallest bucket that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import tvm
from tvm import relax, te, tirx

from mcfuser.graph.dynamic.axes import Point, RuntimeExtent
from mcfuser.graph.dynamic.length import (
    Least,
    Length,
    LengthProduct,
    LengthSum,
    Quotient,
    Symbol,
    evaluate,
)

InputPlace = tuple[str, int]
"""A dimension of an input."""
PortExtent = Length | int
"""An extent at run time: an expression over the run-time extents of the inputs, or a number."""


@dataclass(frozen=True, slots=True)
class RuntimePort:
    """An input or output of a model, whose shape is known at run time."""

    name: str
    shape: tuple[PortExtent, ...]
    dtype: str

    def at(self, point: Point) -> tuple[int, ...]:
        """The shape where the run-time extents are these."""
        return tuple(d if isinstance(d, int) else evaluate(d, point) for d in self.shape)


@dataclass(frozen=True, slots=True)
class BucketFunction:
    """A bucket's module: its `main` takes inputs and gives outputs of the shapes at `high`, and its
    last parameters are the run-time `extents`, by name."""

    high: Point
    module: tvm.IRModule
    extents: tuple[str, ...]


def dispatched(
    buckets: Sequence[BucketFunction],
    extents: Sequence[RuntimeExtent],
    inputs: Sequence[RuntimePort],
    outputs: Sequence[RuntimePort],
    sliced: RuntimeExtent | None = None,
) -> tvm.IRModule:
    """The module whose `main` takes inputs at run-time extents.

    It calls the first of the buckets that holds them; the last one holds all in the ranges. At
    extents outside of the ranges it raises an error that names the input; but more than the highest
    of the extent `sliced`, along which rows are computed by themselves, are computed in slices.
    """
    builder = relax.BlockBuilder()
    callees = [_added(builder, bucket.module, f"bucket_{i}") for i, bucket in enumerate(buckets)]
    places = {p: tirx.Var(f"extent_{i}", "int64") for i, p in enumerate(_places(extents))}
    main = _Main(builder, {e.name: places[e.places[0]] for e in extents})
    parameters = [_parameter(port, places) for port in inputs]
    with builder.function("main", parameters):
        for extent in extents:
            main.check(extent, places, extent == sliced)
        calls: list[Callable[[], relax.Expr]] = [
            lambda bucket=bucket, callee=callee: main.call(  # type: ignore[misc]
                bucket, callee, parameters, inputs, outputs
            )
            for bucket, callee in zip(buckets, callees, strict=True)
        ]
        if sliced is None:
            result = main.chosen(buckets, calls)
        else:
            kind = buckets[0].module["main"].ret_ty
            again = _declared(builder, extents, inputs, outputs, isinstance(kind, relax.TupleType))
            result = main.sliced(
                sliced,
                lambda: main.chosen(buckets, calls),
                lambda: main.halves(sliced, again, parameters, inputs, outputs),
            )
        builder.emit_func_output(result)
    whole = builder.finalize()
    made = whole["main"]
    impure = relax.Function(made.params, made.body, made.ret_ty, False, made.attrs)
    whole.update_func(whole.get_global_var("main"), impure)  # it may raise an error
    if sliced is not None:
        inner = relax.utils.copy_with_new_vars(impure.without_attr("global_symbol"))
        whole.update_func(whole.get_global_var(again.name_hint), inner)
    whole = relax.transform.Normalize()(whole)
    relax.analysis.well_formed(whole)
    return whole


def _places(extents: Sequence[RuntimeExtent]) -> list[InputPlace]:
    return [place for extent in extents for place in extent.places]


def _parameter(port: RuntimePort, places: Mapping[InputPlace, tirx.Var]) -> relax.Var:
    """A parameter each of whose run-time dimensions has a variable of its own."""
    shape = [
        d if isinstance(d, int) else places[port.name, position]
        for position, d in enumerate(port.shape)
    ]
    return relax.Var(port.name, relax.TensorType(shape, port.dtype))


def _declared(
    builder: relax.BlockBuilder,
    extents: Sequence[RuntimeExtent],
    inputs: Sequence[RuntimePort],
    outputs: Sequence[RuntimePort],
    many: bool,
) -> tvm.ir.GlobalVar:
    """The variable of a function that takes and gives what `main` does, and is written later; the
    results are a tuple where they are `many`."""
    places = {p: tirx.Var(f"extent_{i}", "int64") for i, p in enumerate(_places(extents))}
    own = _Main(builder, {e.name: places[e.places[0]] for e in extents})
    kinds = [relax.TensorType(own.shape(port), port.dtype) for port in outputs]
    result = relax.TupleType(kinds) if many else kinds[0]
    parameters = [_parameter(port, places) for port in inputs]
    return builder.add_func(relax.Function.create_empty(parameters, result, False), "slices")


def _added(builder: relax.BlockBuilder, module: tvm.IRModule, name: str) -> tvm.ir.GlobalVar:
    """Adds a bucket's functions to a module, its `main` under a name; the variable of that."""
    found = {
        v: builder.add_func(f.without_attr("global_symbol"), v.name_hint)
        for v, f in module.functions.items()
        if v.name_hint != "main"
    }
    main = _Renamed(found).visit_expr(module["main"]).without_attr("global_symbol")
    return builder.add_func(main, name)


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):  # type: ignore[misc]
    """Calls a module's functions by their names in another module."""

    def __init__(self, found: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__()
        self.found = {old.name_hint: new for old, new in found.items()}

    def visit_global_var_(self, variable: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        return self.found.get(variable.name_hint, variable)


@dataclass
class _Main:
    """The function that calls the buckets, while it is written; `symbols` are the variables of the
    run-time extents, by name."""

    builder: relax.BlockBuilder
    symbols: dict[str, tirx.Var]
    functions: dict[object, tvm.ir.GlobalVar] = field(default_factory=dict)

    def check(
        self, extent: RuntimeExtent, places: Mapping[InputPlace, tirx.Var], endless: bool
    ) -> None:
        """Ends the call with an error where an extent is outside of its range, which has no upper
        end if `endless`, or where another dimension that should have the same has not."""
        own = self.symbols[extent.name]
        inside = own >= extent.low if endless else tirx.all(own >= extent.low, own <= extent.high)
        takes = f"; the module takes {extent.low} {'or more' if endless else f'to {extent.high}'}"
        self._assert(inside, [own], f"{extent.place} is {{}}{takes}")
        for name, position in extent.places[1:]:
            other = places[name, position]
            words = f"dimension {position} of input '{name}' is {{}}, and {extent.place} is {{}}"
            self._assert(other == own, [other, own], f"{words}; both must be the same")

    def _assert(
        self, condition: tirx.PrimExpr, numbers: Sequence[tirx.PrimExpr], words: str
    ) -> None:
        shown = [relax.prim_value(n) for n in numbers]
        self.builder.emit(relax.op.assert_op(relax.prim_value(condition), shown, words))

    def chosen(
        self, buckets: Sequence[BucketFunction], calls: Sequence[Callable[[], relax.Expr]]
    ) -> relax.Expr:
        """The result of the first bucket that holds the inputs."""
        if len(buckets) == 1:
            return calls[0]()
        holds = tirx.all(*(self.symbols[s] <= high for s, high in buckets[0].high.items()))
        here = self._block(calls[0])
        others = self._block(lambda: self.chosen(buckets[1:], calls[1:]))
        return self.builder.emit(relax.If(relax.prim_value(holds), here, others))

    def sliced(
        self,
        extent: RuntimeExtent,
        at_once: Callable[[], relax.Expr],
        halves: Callable[[], relax.Expr],
    ) -> relax.Expr:
        """The result at once where the extent is in its range, else of two halves."""
        holds = self.symbols[extent.name] <= extent.high
        here, others = self._block(at_once), self._block(halves)
        return self.builder.emit(relax.If(relax.prim_value(holds), here, others))

    def halves(
        self,
        extent: RuntimeExtent,
        again: tvm.ir.GlobalVar,
        parameters: Sequence[relax.Var],
        inputs: Sequence[RuntimePort],
        outputs: Sequence[RuntimePort],
    ) -> relax.Expr:
        """Calls `again` with the first rows, about half of all, and with the last ones, and joins
        the results.

        The first are a multiple of the extent's highest, or fewer where too few would be left: so
        the slices are as few as can be.
        """
        all_rows, most = self.symbols[extent.name], extent.high
        slices = tirx.floordiv(all_rows + most - 1, most)
        first = tirx.min(tirx.floordiv(slices + 1, 2) * most, all_rows - extent.low)
        axes = dict(extent.places)
        made = []
        for count, last in ((first, False), (all_rows - first, True)):
            given = [
                self._rows(v, p, axes[p.name], count, last) if p.name in axes else v
                for v, p in zip(parameters, inputs, strict=True)
            ]
            made.append(self.builder.emit(relax.Call(again, given)))
        one, other = made
        if not isinstance(one.ty, relax.TupleType):
            return self._joined(one, other, outputs[0], extent.name)
        parts = []
        for i, port in enumerate(outputs):
            one, other = (self.builder.emit(relax.TupleGetItem(m, i)) for m in made)
            parts.append(self._joined(one, other, port, extent.name))
        return self.builder.emit(relax.Tuple(parts))

    def call(
        self,
        bucket: BucketFunction,
        callee: tvm.ir.GlobalVar,
        parameters: Sequence[relax.Var],
        inputs: Sequence[RuntimePort],
        outputs: Sequence[RuntimePort],
    ) -> relax.Expr:
        """Pads the inputs, calls a bucket, and cuts its results."""
        given = [self._padded(v, p, bucket.high) for v, p in zip(parameters, inputs, strict=True)]
        lengths = [self._length_of(name, parameters, inputs) for name in bucket.extents]
        result = self.builder.emit(relax.Call(callee, [*given, *lengths]))
        if not isinstance(bucket.module["main"].ret_ty, relax.TupleType):
            return self._cut(result, outputs[0], bucket.high)
        parts = [self.builder.emit(relax.TupleGetItem(result, i)) for i in range(len(outputs))]
        cut = [self._cut(v, p, bucket.high) for v, p in zip(parts, outputs, strict=True)]
        return self.builder.emit(relax.Tuple(cut))

    def _block(self, write: Callable[[], relax.Expr]) -> relax.SeqExpr:
        self.builder._begin_binding_block()
        result = write()
        return relax.SeqExpr([self.builder._end_block()], result)

    def _padded(self, value: relax.Var, port: RuntimePort, high: Point) -> relax.Expr:
        """An input with zeros up to a bucket's extents."""
        upper = port.at(high)
        if all(isinstance(d, int) for d in port.shape):
            return value

        def write() -> tirx.PrimFunc:
            shape, source = self._placeholder(port)

            def element(*at: tirx.Var) -> tirx.PrimExpr:
                within = [i < n for i, n in zip(at, shape, strict=True) if isinstance(n, tirx.Var)]
                zero = tirx.const(0, port.dtype)
                return tirx.if_then_else(tirx.all(*within), source[at], zero)

            return te.create_prim_func([source, te.compute(upper, element, name="padded")])

        function = self._function(("pad", port, upper), "pad", write)
        kind = relax.TensorType(upper, port.dtype)
        return self.builder.emit(relax.call_tir(function, [value], kind))

    def _cut(self, value: relax.Expr, port: RuntimePort, high: Point) -> relax.Expr:
        """A result of a bucket within the run-time extents."""
        upper = port.at(high)
        if all(isinstance(d, int) for d in port.shape):
            return value

        def write() -> tirx.PrimFunc:
            source = te.placeholder(upper, port.dtype, "whole")
            shape, _ = self._placeholder(port)
            return te.create_prim_func(
                [source, te.compute(shape, lambda *at: source[at], name="cut")]
            )

        function = self._function(("cut", port, upper), "cut", write)
        kind = relax.TensorType(self.shape(port), port.dtype)
        return self.builder.emit(relax.call_tir(function, [value], kind))

    def _rows(
        self, value: relax.Var, port: RuntimePort, axis: int, count: tirx.PrimExpr, last: bool
    ) -> relax.Expr:
        """So many of an input's rows along an axis: its first ones, or its last."""

        def write() -> tirx.PrimFunc:
            shape, source = self._placeholder(port)
            taken = [*shape[:axis], tirx.Var("taken", "int64"), *shape[axis + 1 :]]
            start = shape[axis] - taken[axis] if last else 0

            def element(*at: tirx.Var) -> tirx.PrimExpr:
                return source[(*at[:axis], at[axis] + start, *at[axis + 1 :])]

            return te.create_prim_func([source, te.compute(taken, element, name="rows")])

        function = self._function(("rows", port, axis, last), "rows", write)
        shape = [*value.ty.shape]
        shape[axis] = count
        kind = relax.TensorType(shape, port.dtype)
        return self.builder.emit(relax.call_tir(function, [value], kind))

    def _joined(
        self, one: relax.Expr, other: relax.Expr, port: RuntimePort, name: str
    ) -> relax.Expr:
        """Two halves of a result, one after the other along the extent of that name."""
        axis = port.shape.index(Symbol(name))

        def write() -> tirx.PrimFunc:
            shape, _ = self._placeholder(port)
            counts = tirx.Var("one", "int64"), tirx.Var("other", "int64")
            parts = [
                te.placeholder((*shape[:axis], n, *shape[axis + 1 :]), port.dtype, n.name)
                for n in counts
            ]

            def element(*at: tirx.Var) -> tirx.PrimExpr:
                behind = (*at[:axis], at[axis] - counts[0], *at[axis + 1 :])
                return tirx.if_then_else(at[axis] < counts[0], parts[0][at], parts[1][behind])

            return te.create_prim_func([*parts, te.compute(shape, element, name="joined")])

        function = self._function(("joined", port, axis), "joined", write)
        kind = relax.TensorType(self.shape(port), port.dtype)
        return self.builder.emit(relax.call_tir(function, [one, other], kind))

    def _length_of(
        self, name: str, parameters: Sequence[relax.Var], inputs: Sequence[RuntimePort]
    ) -> relax.Expr:
        """A run-time extent as a tensor of one int64, from an input that has it."""
        at, position = next(
            (i, d)
            for i, port in enumerate(inputs)
            for d, dim in enumerate(port.shape)
            if dim == Symbol(name)
        )

        def write() -> tirx.PrimFunc:
            shape, source = self._placeholder(inputs[at])
            return te.create_prim_func(
                [source, te.compute((1,), lambda _: shape[position], name="extent")]
            )

        function = self._function(("extent", name), "extent", write)
        kind = relax.TensorType((1,), "int64")
        return self.builder.emit(relax.call_tir(function, [parameters[at]], kind))

    def _function(
        self, key: object, name: str, write: Callable[[], tirx.PrimFunc]
    ) -> tvm.ir.GlobalVar:
        """A function of the module, which is written once."""
        if key not in self.functions:
            function = write().without_attr("global_symbol")
            self.functions[key] = self.builder.add_func(function, name)
        return self.functions[key]

    def shape(self, port: RuntimePort) -> list[tirx.PrimExpr | int]:
        """A port's shape in terms of the run-time extents."""
        return [d if isinstance(d, int) else self._expression(d) for d in port.shape]

    def _expression(self, length: Length) -> tirx.PrimExpr:
        match length:
            case Symbol(name):
                return self.symbols[name]
            case LengthSum(terms, constant):
                whole = tirx.const(constant, "int64")
                for one, times in terms:
                    whole = whole + self._expression(one) * times
                return whole
            case LengthProduct(one, other):
                return self._expression(one) * self._expression(other)
            case Quotient(divided, divisor):
                return tirx.floordiv(self._expression(divided), divisor)
            case Least(bounded, most):
                return tirx.min(self._expression(bounded), tirx.const(most, "int64"))
            case _:
                assert_never(length)

    @staticmethod
    def _placeholder(port: RuntimePort) -> tuple[list[tirx.Var | int], te.Tensor]:
        """A tensor of a port's shape for a function of its own: each run-time extent a variable."""
        shape = [d if isinstance(d, int) else tirx.Var(f"n{i}", "int64")
                 for i, d in enumerate(port.shape)]  # fmt: skip
        return shape, te.placeholder(shape, port.dtype, "given")
