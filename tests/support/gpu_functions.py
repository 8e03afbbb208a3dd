"""Functions that a GPU's pipeline schedules, and the CUDA that it makes of them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx

from mcfuser.codegen.cuda import rest

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
Make = Callable[..., relax.Expr]


def unscheduled(make: Make, *shapes: tuple[int, ...], dtype: str = "float16") -> tirx.PrimFunc:
    """The loops of a model that makes its result of some inputs. Raises ValueError where there are
    none, or several functions of them."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(make(*inputs))
        builder.emit_func_output(out)
    t = relax.transform
    passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FuseOps(), t.FuseTIR()]
    module = tvm.transform.Sequential(passes)(builder.get())
    (function,) = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    return function


def source(make: Make, *inputs: tuple[tuple[int, ...], str]) -> str:
    """The CUDA of a model that makes its result of inputs with these shapes and types."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType(*typed)) for i, typed in enumerate(inputs)]
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(*given)))
        builder.emit_func_output(out)
    with TARGET, tvm.transform.PassContext(config=rest.FUSED):
        scheduled = rest.pipeline(TARGET)(builder.get())
    kernels = {
        n.name_hint: f.with_attr("global_symbol", n.name_hint)
        for n, f in scheduled.functions_items()
        if isinstance(f, tirx.PrimFunc)
    }
    built = tvm.compile(tvm.IRModule(kernels), target=TARGET)
    return "".join(made.inspect_source() for made in built.mod.imports)
