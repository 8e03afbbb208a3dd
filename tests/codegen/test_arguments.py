"""Functions that get a model's inputs check them; what a module makes itself is not checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.runtime.vm import VirtualMachine

from mcfuser.codegen import arguments
from mcfuser.codegen.arguments import CHECKED, given_are_checked
from mcfuser.codegen.llvm import module
from mcfuser.codegen.llvm.module import build_library
from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import build
from mcfuser.devices.cpu import probe_cpu

SHAPE = (16, 64)


def chained(through: str = "") -> tvm.IRModule:
    """Two sums, of which the first reads the input as it is, reshaped, or in a tuple."""
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        value: relax.Expr = x
        if through == "reshape":
            value = builder.emit(relax.op.reshape(x, SHAPE[::-1]))
        elif through == "tuple":
            pair = builder.emit(relax.Tuple([x, x]))
            value = builder.emit(relax.TupleGetItem(pair, 1))
        for number in range(2):
            ty = value.ty
            value = builder.emit(relax.call_tir(
                builder.add_func(summed([int(n) for n in ty.shape], number), f"sum_{number}"),
                [value], ty,
            ))  # fmt: skip
        builder.emit_func_output(value)
    return builder.get()


def summed(shape: list[int], number: int) -> tirx.PrimFunc:
    x = tvm.te.placeholder(tuple(shape), "float32", name="x")
    out = tvm.te.compute(x.shape, lambda *at: x(*at) + float(number + 1), name="out")
    return tvm.te.create_prim_func([x, out]).without_attr("global_symbol")


def marked(made: tvm.IRModule) -> set[str]:
    after = given_are_checked()(made)
    return {v.name_hint for v, f in after.functions.items()
            if isinstance(f, tirx.PrimFunc) and CHECKED in f.attrs}  # fmt: skip


@pytest.mark.parametrize("through", ["", "reshape", "tuple"])
def test_what_gets_an_input_or_a_view_of_one_is_marked(through: str) -> None:
    assert marked(chained(through)) == {"sum_0"}


def test_so_is_what_has_extents_that_are_found_later() -> None:
    n = tirx.Var("n", "int64")
    x, y = (tvm.te.placeholder((n, 4), "float32", name=name) for name in ("x", "y"))
    function = tvm.te.create_prim_func([x, y, tvm.te.compute(x.shape, lambda i, j: x[i, j])])
    assert marked(tvm.IRModule({"alone": function})) == {"alone"}
    taking = prim_func(
        "@T.prim_func(s_tir=True, private=True)\n"
        "def taking(out: T.Buffer((4,), 'float32'), n_extent: T.int32):\n"
        '    with T.sblock("root"):\n'
        "        T.reads()\n"
        "        T.writes(out[0:4])\n"
        "        out[n_extent] = T.float32(1)\n"
    )
    assert marked(tvm.IRModule({"taking": taking})) == {"taking"}


def test_only_these_have_code_that_checks() -> None:
    lower, _, _ = tirx.get_tir_pipeline(arguments.register())
    target = tvm.target.Target({"kind": "llvm"}, host="llvm")
    functions = {v: f.with_attr("global_symbol", v.name_hint)
                 for v, f in given_are_checked()(chained()).functions.items()
                 if isinstance(f, tirx.PrimFunc)}  # fmt: skip
    lowered = lower(tirx.transform.BindTarget(target)(tvm.IRModule(functions)))
    lines = {v.name_hint: str(f).count("assert") for v, f in lowered.functions.items()}
    assert lines["sum_0"] > 10 and lines["sum_1"] == 0


@pytest.mark.parametrize("through", ["", "reshape"])
def test_inputs_that_a_kernel_would_read_wrong_are_refused(
    through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "kernel_passes", build.kernel_passes)  # as users build
    path = tmp_path / "module.so"
    path.write_bytes(build_library(chained(through), probe_cpu()))
    main = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    found = main(tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(found.reshape(SHAPE), x + 1 + 2)
    strided = np.zeros((SHAPE[0], 2 * SHAPE[1]), np.float32)[:, ::2]
    for wrong in (strided, x[:, 1:], x.astype(np.float64)):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            main(tvm_ffi.from_dlpack(wrong))
