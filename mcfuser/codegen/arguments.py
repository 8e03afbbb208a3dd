"""Which functions of a module check their arguments: those that get a model's inputs.

TVM's functions check the extents, strides, type, alignment and device of all that they are given,
in some 700 lines of LLVM's code each: of the 23 s in which the module of a DenseNet was built for a
GPU, 14 went there. What a module hands from function to function it has made itself; what it was
given is to be refused where a kernel would read it wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx

CHECKED = "mcfuser.checked"
"""The attribute of a function that checks its arguments."""
NAME = "mcfuser.arguments"
"""The name of TVM's lowering with `unchecked` behind it, once `register` has run."""
_CALLS = "relax.call_tir"
LoweringPasses = Callable[[], tvm.transform.Pass]


def given_are_checked() -> tvm.transform.Pass:
    """A pass that marks the functions that get a parameter of a Relax function, or a view of one,
    and those with extents that are known at run time only: kernels assert that these are such as
    they were made for."""
    return tvm.transform.module_pass(lambda module, _: _marked(module), opt_level=0)


def unchecked() -> tvm.transform.Pass:
    """A pass over lowered functions: those that are not marked check nothing."""
    return tvm.transform.module_pass(lambda module, _: _unchecked(module), opt_level=0)


def register() -> str:
    """Makes the lowering known to TVM in this process; gives its name."""
    tirx.register_tir_pipeline(NAME, _lowering)
    return NAME


def _lowering() -> tuple[tvm.transform.Pass, LoweringPasses, LoweringPasses]:
    lower, host, device = tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential([lower, unchecked()]), host, device


def _marked(module: tvm.IRModule) -> tvm.IRModule:
    taking = _Taking()
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            taking.given |= set(function.params)
            taking.visit_expr(function)
    marked = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for variable, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc) and (
            variable.name_hint in taking.functions or _found_later(function)
        ):
            name = marked.get_global_var(variable.name_hint)
            marked.update_func(name, function.with_attr(CHECKED, True))
    return marked


def _found_later(function: tirx.PrimFunc) -> bool:
    """Whether a function takes an extent, or an array that has one which is no number."""
    kinds = [p.ty for p in function.params]
    return not all(
        isinstance(ty, tirx.buffer.BufferType) and all(isinstance(n, tirx.IntImm) for n in ty.shape)
        for ty in kinds
    )


@relax.expr_functor.visitor
class _Taking(relax.PyExprVisitor):  # type: ignore[misc]
    """The names of the `functions` that get one of the values that are `given`."""

    def __init__(self) -> None:
        super().__init__()
        self.given: set[relax.Var] = set()
        self.functions: set[str] = set()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(value, relax.Call):
            operator = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
            if operator.startswith(_CALLS):
                if any(self._is_given(a) for a in value.args[1].fields):
                    self.functions.add(value.args[0].name_hint)
            elif any(self._is_given(a) for a in value.args):  # it may be a view
                self.given.add(binding.var)
        elif self._is_given(value):
            self.given.add(binding.var)
        super().visit_var_binding_(binding)

    def _is_given(self, value: relax.Expr) -> bool:
        match value:
            case relax.Tuple():
                return any(self._is_given(field) for field in value.fields)
            case relax.TupleGetItem():
                return self._is_given(value.tuple_value)
            case relax.If():
                return True  # it may give what it was given
        return value in self.given


def _unchecked(module: tvm.IRModule) -> tvm.IRModule:
    plain = {
        v: f
        for v, f in module.functions.items()
        if isinstance(f, tirx.PrimFunc) and CHECKED not in f.attrs
    }
    after = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    after.update(tirx.transform.SkipAssert()(tvm.IRModule(plain)))
    return after
