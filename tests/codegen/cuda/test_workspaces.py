"""What a function allocates in a GPU's memory is passed to it, and it computes what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

from mcfuser.codegen.cuda import rest
from mcfuser.codegen.cuda.workspaces import workspaces, workspaces_given
from mcfuser.codegen.script import prim_func
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import load
from mcfuser.graph.matching import called
from mcfuser.graph.partition import partition
from tests.support.cuda_modules import module_with, split_by
from tests.support.gpu_functions import TARGET
from tests.support.lifted import computed
from tests.support.naive import primfunc
from tests.support.nets import Net


def gated(joined: bool) -> onnx.ModelProto:
    """Two pairs of products, whose results lie side by side if they are `joined`."""
    n = Net()
    x = n.input("x", 2, 8, 16)
    outs = []
    for _ in range(2):
        rows = n.op("Softmax", n.op("MatMul", x, n.weight(16, 24)), axis=-1)
        outs.append(n.op("MatMul", rows, n.weight(24, 16)))
    both = n.op("Concat", *outs, axis=2) if joined else n.op("Add", *outs)
    return n.model(n.op("MatMul", both, n.weight(32 if joined else 16, 8)))


def own(module: tvm.IRModule) -> int:
    """What the functions of a module allocate for themselves."""
    return sum(len(workspaces(f)) for f in module.functions.values())


@pytest.mark.parametrize("joined", [False, True])
def test_kernels_compute_the_same_bits(joined: bool, tmp_path: Path) -> None:
    loaded = load(gated(joined).SerializeToString(), {})
    matches = partition(loaded.module, 1e12, 1e11).matches
    made = [Installed(f"c{i}", m.chain, primfunc(m.chain, m.shapes, m.starts))
            for i, m in enumerate(matches)]  # fmt: skip
    kernels = [Replacement(m, (k,)) for m, k in zip(matches, made, strict=True)]
    before = install(loaded.module, kernels)
    assert ("relax.call_tir_inplace" in called(before["main"].body)) == joined
    after = workspaces_given()(before)
    relax.analysis.well_formed(after)
    assert own(before) > 0 == own(after)
    x = np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)
    for one, two in zip(*(computed(m, [x], tmp_path) for m in (before, after)), strict=True):
        np.testing.assert_array_equal(one, two)


def two_results(scale: int) -> tirx.PrimFunc:
    """Twice what it is given, and a number more, by way of memory of its own."""
    return prim_func(f"""
@T.prim_func(s_tir=True, private=True)
def two(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float32")):
    T.func_attr({{"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}})
    with T.sblock("root"):
        T.reads(x[0:8])
        T.writes(y[0:8], z[0:8])
        w = T.alloc_buffer((8,), "float32")
        for i in range(8):
            w[i] = x[i] * T.float32({scale})
        for i in range(8):
            y[i] = w[i]
            z[i] = w[i] + T.float32(1)
""").without_attr("global_symbol")


def with_two_results(branches: bool) -> tvm.IRModule:
    """A module whose kernels have two results each; they may stand in the branches of a choice."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType((8,), "float32")
    x, which = relax.Var("x", kind), relax.Var("which", relax.TensorType((), "bool"))
    kernels = [builder.add_func(two_results(s), f"two{s}") for s in (2, 3)]

    def emitted(kernel: tvm.ir.GlobalVar) -> relax.Expr:
        both = builder.emit(relax.call_tir(kernel, [x], [kind, kind]))
        return builder.emit(relax.op.subtract(both[0], relax.op.exp(both[1])))

    def branch(kernel: tvm.ir.GlobalVar) -> relax.Expr:
        builder._begin_binding_block()
        last = emitted(kernel)
        return relax.SeqExpr([builder._end_block()], last)

    with builder.function("main", [x, which]):
        if branches:
            out = builder.emit(relax.If(which, branch(kernels[0]), branch(kernels[1])))
        else:
            out = builder.emit(relax.op.add(*map(emitted, kernels)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("branches", [False, True])
def test_several_results_stay_those_that_they_were(branches: bool) -> None:
    before = with_two_results(branches)
    after = workspaces_given()(before)
    relax.analysis.well_formed(after)
    assert own(before) == 2 and own(after) == 0
    assert {f.name_hint for f in before.functions} == {f.name_hint for f in after.functions}
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    given = [tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(True))]
    one, two = (
        relax.VirtualMachine(tvm.compile(m, target="llvm"), tvm.cpu())["main"](*given).numpy()
        for m in (before, after)
    )
    np.testing.assert_array_equal(one, two)


def scheduled(module: tvm.IRModule) -> tvm.IRModule:
    """A module as it is before TVM lowers its functions."""
    with TARGET, tvm.transform.PassContext(config=rest.FUSED):
        return rest.pipeline(TARGET)(module)


def of(make: Callable[[relax.Var], relax.Expr], *shape: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(make(x))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("combine", ["kernel", "last"])
def test_a_split_s_partial_results_are_passed_to_it(combine: str) -> None:
    source, binary = split_by(combine)
    before = module_with(source, binary)
    assert own(before) > 0 == own(scheduled(before))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: relax.op.nn.softmax(x, axis=-1),
        lambda x: relax.op.sort(x, axis=-1),
        lambda x: relax.op.topk(x, 5, axis=-1, ret_type="values"),
        lambda x: relax.op.variance(x, axis=-1),
    ],
    ids=["softmax", "sort", "topk", "variance"],
)
def test_functions_of_tvm_are_passed_theirs(make: Callable[[relax.Var], relax.Expr]) -> None:
    module = scheduled(of(make, 32, 3000))
    assert own(module) == 0
    texts = [f.script() for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    allocated = [line for text in texts for line in text.splitlines() if "alloc_buffer(" in line]
    assert not [line for line in allocated if "scope=" not in line], "of a thread or a block"
