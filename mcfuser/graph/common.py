"""Computes once what a function's bindings compute several times.

TVM's passes compare expressions by all that they contain. Large constants stand apart meanwhile, as
parameters: to compare the 3.4 GB of a diffusion model's takes four seconds, each time.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, relax

from mcfuser.graph.constants import LARGE
from mcfuser.graph.dataflow import array


def common_values(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` has one binding for equal expressions. Equal constants of more than
    LARGE bytes count as different where they are two objects."""
    made = tvm.IRModule(dict(module.functions), attrs=module.attrs)

    def change(main: relax.Function) -> relax.Function:
        made["main"] = main
        return relax.transform.EliminateCommonSubexpr()(made)["main"]

    made["main"] = large_apart(module["main"], change)
    return made


def large_apart(
    function: relax.Function, change: Callable[[relax.Function], relax.Function]
) -> relax.Function:
    """What a change makes of a function. It sees parameters instead of constants of more than LARGE
    bytes, whose bytes TVM's passes would compare."""
    apart = _Apart()
    parted = apart.visit_expr(function)
    if not apart.variables:
        return change(function)
    params = [*parted.params, *apart.variables.values()]
    changed = change(
        relax.Function(params, parted.body, parted.ret_ty, parted.is_pure, parted.attrs)
    )
    return changed.bind_params({v: apart.constants[key] for key, v in apart.variables.items()})


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
