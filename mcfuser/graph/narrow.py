"""Writes a float32 module with narrow products, weights and values between kernels.

The module has been simplified before: norms and softmaxes that exporters spell out are one operator
each by then, products are plain, and every value has its type, which the nodes of an ONNX model do
not tell. Casts are operators like any other, so chains take them in: a kernel computes in float32
and rounds once, where it stores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import relax

from mcfuser.chain import TF32
from mcfuser.errors import ModelError
from mcfuser.graph.dataflow import RECURRENCE, Dataflow, array, dataflow, dtype, operator_name
from mcfuser.graph.matching import with_arguments, with_variables
from mcfuser.graph.precision import (
    WIDE,
    Narrowing,
    Types,
    counted,
    fits,
    is_lowest,
    is_wide,
    rounded,
    types,
)
from mcfuser.graph.tensors import lowest_number, numpy_dtype, tensor_over
from mcfuser.graph.weights import aligned_copy

NO_PRODUCTS = "it multiplies no float32 matrices"


def narrowed(module: tvm.IRModule, narrow: str) -> tuple[tvm.IRModule, Narrowing]:
    """The module whose `main` takes and gives what it did, and computes products with operands of
    the type `narrow`. Values keep their names.

    Raises ModelError where there is no product of float32 values.
    """
    main = module["main"]
    flow = dataflow(main)
    decided = types(flow, tuple(main.params), narrow)
    found = counted(flow, decided, narrow)
    if not found.narrow_products:
        why = NO_PRODUCTS
        if found.float32_products:
            why = f"the weights of all {found.float32_products} are beyond its numbers"
        raise _without_products(narrow, why)
    writing = _Writing(flow, decided, narrow, {v.name for v in flow.order})
    changed = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    changed.update_func(changed.get_global_var("main"), writing.function(main))
    changed = relax.transform.Normalize()(changed)
    relax.analysis.well_formed(changed)
    return changed, found


def to_tf32(module: tvm.IRModule) -> tuple[tvm.IRModule, Narrowing]:
    """The module as it is, whose kernels are to round the operands of products; it has float32
    values everywhere.

    Raises ModelError where there is no product of float32 values.
    """
    found = rounded(dataflow(module["main"]))
    if not found.narrow_products:
        raise _without_products(TF32, NO_PRODUCTS)
    return module, found


def _without_products(narrow: str, why: str) -> ModelError:
    return ModelError(
        f"no product of the model can have {narrow} operands: {why}; compile it without --precision"
    )


@dataclass
class _Writing:
    """The bindings of a function while they are written with other types."""

    flow: Dataflow
    decided: Types
    narrow: str
    taken: set[str]
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    written: dict[relax.Var, relax.Var] = field(default_factory=dict)
    constants: dict[object, relax.Expr] = field(default_factory=dict)
    bindings: list[relax.Binding] = field(default_factory=list)
    inside: bool = False

    def function(self, main: relax.Function) -> relax.Function:
        """The function with the same parameters and results."""
        blocks: list[relax.BindingBlock] = []
        for block in main.body.blocks:
            self.inside, self.bindings = isinstance(block, relax.DataflowBlock), []
            if not blocks:
                for p in (p for p in main.params if p in self.decided.narrow):
                    self.written[p] = self._emit(relax.op.astype(p, self.narrow))
            for binding in block.bindings:
                self._bind(binding)
            if block.same_as(main.body.blocks[-1]):
                result = self._result(main.body.body)
            blocks.append(type(block)(self.bindings))
        body = relax.SeqExpr(blocks, result)
        return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)

    def _result(self, own: relax.Expr) -> relax.Expr:
        """A result of the function in the type that it had."""
        if isinstance(own, relax.Tuple):
            return relax.Tuple([self._result(f) for f in own.fields])
        if not isinstance(own, relax.Var) or own not in self.decided.narrow:
            return self.written.get(own, own) if isinstance(own, relax.Var) else own
        if own not in self.flow.values:  # a parameter
            return own
        return self._emit(relax.op.astype(self.written[own], WIDE), kept=True)

    def _bind(self, binding: relax.Binding) -> None:
        """Writes the binding of a value, with a cast after it where it is stored narrow."""
        v, value = binding.var, binding.value
        kept = not isinstance(v, relax.DataflowVar)
        if isinstance(binding, relax.MatchCast):
            source = self._operand(value, wide=True)
            self.bindings.append(relax.MatchCast(v, source, binding.ty))
            return
        wide = v in self.decided.computed_wide or not is_wide(v)
        made = self._rewritten(value, wide)
        if made.same_as(value) and v not in self.decided.narrow:
            self.bindings.append(binding)
            return
        made = self.builder.normalize(made)
        wanted = self.narrow if v in self.decided.narrow else None
        if wanted is not None and isinstance(made.ty, relax.TensorType) and dtype(made) != wanted:
            made = relax.op.astype(self._emit(made), wanted)
        self.written[v] = self._emit(made, v.name, kept)

    def _rewritten(self, value: relax.Expr, wide: bool) -> relax.Expr:
        """An expression over the values as they are written; in float32 if `wide`, else narrow."""
        if isinstance(value, relax.TupleGetItem):
            source = self.written.get(value.tuple_value, value.tuple_value)
            return relax.TupleGetItem(source, value.index)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._rewritten(a, True) for a in value.fields])
        if isinstance(value, relax.Var):
            return self._operand(value, wide)
        if isinstance(value, relax.Call):
            known = {a: self._operand(a, wide) for a in value.args if isinstance(a, relax.Var)}
            args = [
                known[a] if isinstance(a, relax.Var) else self._operand(a, wide) for a in value.args
            ]
            if operator_name(value) == RECURRENCE:
                args = self._recurrence(args)
            if all(a.same_as(b) for a, b in zip(args, value.args, strict=True)):
                return value
            if operator_name(value) == "nn.pad" and not wide and is_lowest(value):
                return relax.op.nn.pad(
                    args[0], value.attrs.pad_width, "constant", lowest_number(self.narrow)
                )
            return with_arguments(value, args)
        free = [v for v in relax.analysis.free_vars(value) if v in self.written]
        renamed = {v: self._operand(v, True) for v in free}
        return with_variables(value, renamed)

    def _recurrence(self, args: list[relax.Expr]) -> list[relax.Expr]:
        """What a recurrence is given: its matrices are narrow, if all of them fit. A code generator
        rounds what they multiply alike, and nothing else."""
        name, given = args
        fields = [*given.fields]
        square = array(fields[1])
        if is_wide(fields[1]) and square is not None and fits(square, self.narrow):
            fields[1] = self._constant(fields[1])
        return [name, relax.Tuple(fields)]

    def _operand(self, a: relax.Expr, wide: bool) -> relax.Expr:
        if isinstance(a, relax.Tuple):
            fields = [self._operand(f, wide) for f in a.fields]
            same = all(f.same_as(g) for f, g in zip(fields, a.fields, strict=True))
            return a if same else self.builder.normalize(relax.Tuple(fields))
        if isinstance(a, relax.Var):
            read = self.written.get(a, a)
            if not wide or a not in self.decided.narrow or isinstance(a.ty, relax.TupleType):
                return read
            parameter = a not in self.flow.values
            return a if parameter else self._emit(relax.op.astype(read, WIDE))
        if not wide and is_wide(a) and array(a) is not None:
            return self._constant(a)
        return a

    def _constant(self, constant: relax.Expr) -> relax.Expr:
        """A constant in the narrow type, rounded to nearest; one that is read twice is made
        once."""
        values = array(constant)
        assert values is not None
        at = (values.ctypes.data, values.shape)
        if at not in self.constants:
            made = aligned_copy(values, numpy_dtype(self.narrow))
            self.constants[at] = relax.const(tensor_over(made))
        return self.constants[at]

    def _emit(self, value: relax.Expr, name: str | None = None, kept: bool = False) -> relax.Var:
        """Binds an expression to a new variable."""
        value = self.builder.normalize(value)
        variable = relax.DataflowVar if self.inside and not kept else relax.Var
        made = variable(name or self._unused(), value.ty)
        self.bindings.append(relax.VarBinding(made, value))
        return made

    def _unused(self) -> str:
        """A name that no value of the module has."""
        number = len(self.taken)
        while f"lv_{number}" in self.taken:
            number += 1
        self.taken.add(f"lv_{number}")
        return f"lv_{number}"
