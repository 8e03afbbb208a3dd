"""TVM's own kernels may start before those ahead of them end, and wait before they touch memory."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

from mcfuser.codegen.cuda import dependent
from mcfuser.codegen.cuda.build import DEPENDENT
from mcfuser.codegen.cuda.rest import pipeline

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
PARAMETERS = "tirx.kernel_launch_params"


@pytest.fixture(scope="module")
def functions() -> list[tirx.PrimFunc]:
    """What becomes of a sum: the function that launches its kernel, and the kernel."""
    x = relax.Var("x", relax.TensorType((64, 128), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(out)
    with TARGET:
        module = pipeline(TARGET)(builder.get())
    alone = {n: f for n, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    bound = tirx.transform.BindTarget(TARGET)(tvm.IRModule(alone))
    lower, _, device = tirx.get_tir_pipeline(dependent.register())
    lowered = lower(bound)
    return list(device()(lowered).functions.values())


def test_a_kernel_waits_first_and_is_tagged(functions: list[tirx.PrimFunc]) -> None:
    (kernel,) = [f for f in functions if PARAMETERS in f.attrs]
    assert list(kernel.attrs[PARAMETERS]) == [DEPENDENT, "blockIdx.x", "threadIdx.x"]
    first, *rest = kernel.body.seq
    assert str(first.value.args[0].value) == "wait"
    assert "griddepcontrol" not in str(rest)


def test_what_runs_on_the_host_stays(functions: list[tirx.PrimFunc]) -> None:
    (host,) = [f for f in functions if PARAMETERS not in f.attrs]
    assert dependent.dependent(host).same_as(host)
    assert "griddepcontrol" not in str(host)
