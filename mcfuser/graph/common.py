"""Computes once what a function's bindings compute several times.

TVM's pass compares expressions by all that they contain. Large constants stand apart meanwhile, as
parameters: to compare the 3.4 GB of a diffusion model's takes four seconds.
"""

from __future__ import annotations

import tvm
from tvm import ir, relax

from mcfuser.graph.constants import LARGE
from mcfuser.graph.dataflow import array


def common_values(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` has one binding for equal expressions. Equal constants of more than
    LARGE bytes count as different where they are two objects."""
    apart = _Apart()
    main = apart.visit_expr(module["main"])
    made = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    if not apart.variables:
        return relax.transform.EliminateCommonSubexpr()(made)
    params = [*main.params, *apart.variables.values()]
    made["main"] = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs)
    main = relax.transform.EliminateCommonSubexpr()(made)["main"]
    values = {v: apart.constants[key] for key, v in apart.variables.items()}
    made["main"] = main.bind_params(values)
    return made


@relax.expr_functor.mutator
class _Apart(relax.PyExprMutator):  # type: ignore[misc]
    """Puts a variable in the place of each large constant."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[object, relax.Var] = {}
        self.constants: dict[object, ir.GenericConst] = {}

    def visit_generic_const_(self, constant: ir.GenericConst) -> relax.Expr:
        elements = array(constant)
        if elements is None or elements.nbytes <= LARGE:
            return constant
        key = elements.ctypes.data, elements.shape, str(elements.dtype)
        if key not in self.variables:
            self.variables[key] = relax.Var(f"constant_{len(self.variables)}", constant.ty)
            self.constants[key] = constant
        return self.variables[key]
