"""TVM's own kernels, lowered so that they may start before the kernels ahead of them end.

They wait, as generated kernels do (`mcfuser.codegen.triton.called`), before they touch memory; the
next kernel may start as their blocks end.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script import tirx as T

from mcfuser.codegen import arguments
from mcfuser.codegen.arguments import LoweringPasses
from mcfuser.codegen.cuda.build import DEPENDENT

NAME = "mcfuser.dependent"
"""The name of the lowering, once `register` has run."""
_PARAMETERS = "tirx.kernel_launch_params"


def register() -> str:
    """Makes the lowering known to TVM in this process; gives its name."""
    tirx.register_tir_pipeline(NAME, _lowering)
    return NAME


def dependent(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that waits, and is launched as a dependent of the one ahead; any other function as
    it is."""
    if _PARAMETERS not in kernel.attrs:
        return kernel
    body = tirx.SeqStmt([tirx.Evaluate(T.ptx.griddepcontrol.wait()), kernel.body])
    return kernel.with_body(body).with_attr(_PARAMETERS, [DEPENDENT, *kernel.attrs[_PARAMETERS]])


def _lowering() -> tuple[tvm.transform.Pass, LoweringPasses, LoweringPasses]:
    """The passes for functions with schedules, then `dependent`; what makes its passes for the
    host's functions, and for the device's."""
    lower, host, device = tirx.get_tir_pipeline(arguments.register())
    waiting = tirx.transform.prim_func_pass(lambda f, module, context: dependent(f), opt_level=0)
    return tvm.transform.Sequential([lower, waiting]), host, device
