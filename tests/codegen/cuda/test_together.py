"""Small functions that need nothing of each other share a launch, and compute what they did."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.s_tir import dlight

from mcfuser.codegen.cuda.together import MOST, SMALL, small_together
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from tests.support.decoders import decoder
from tests.support.naive import primfunc

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
Make = Callable[..., Sequence[relax.Expr]]


def merged(make: Make, *shapes: tuple[int, ...]) -> tvm.IRModule:
    """A model that makes some results of inputs, scheduled, with launches shared."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = [builder.emit_output(e) for e in make(*inputs)]
        builder.emit_func_output(relax.Tuple(made))
    return scheduled(builder.get())


def scheduled(module: tvm.IRModule) -> tvm.IRModule:
    t = relax.transform
    passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FuseOps(), t.FuseTIR()]
    with TARGET:
        return tvm.transform.Sequential(
            [*passes, dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()), small_together()]
        )(module)


def functions(module: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def on_the_host(function: tirx.PrimFunc, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The arrays after a function has run on them, its threads one after the other."""
    text = re.sub(r'T\.thread_binding\((.*?), thread="\w+\.x"\)', r"range(\1)", function.script())
    serial = tvm.script.from_source(text).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": serial.without_attr("tirx.is_scheduled")}), "llvm")
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    built["main"](*tensors)
    return [t.numpy() for t in tensors]


def calls(module: tvm.IRModule) -> int:
    """The launches of a model's main function."""
    bindings = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return sum(isinstance(v, relax.Call) for v in bindings)


def taken(x: relax.Expr, first: int, last: int) -> relax.Expr:
    return relax.op.strided_slice(x, [1], [first], [last])


def test_parts_of_a_row_share_a_launch() -> None:
    """Two of one function, one that turns its halves, one that is transposed."""

    def make(x: relax.Expr) -> list[relax.Expr]:
        turned = relax.op.concat([relax.op.negative(taken(x, 512, 1024)), taken(x, 0, 512)], 1)
        swapped = relax.op.permute_dims(relax.op.reshape(taken(x, 1024, 1536), (64, 8)))
        doubled = [relax.op.sqrt(relax.op.reshape(x, (1536, 1))) for _ in range(2)]
        return [relax.op.exp(turned), swapped, *doubled]

    module = merged(make, (1, 1536))
    assert calls(module) == 1
    (function,) = functions(module)
    row = np.abs(np.random.default_rng(0).standard_normal((1, 1536))).astype(np.float32)
    shapes = [tuple(int(n) for n in p.ty.shape) for p in function.params]
    *inputs, _, _, _, _ = shapes
    assert set(inputs) == {(1, 1536)}
    arrays = [row for _ in inputs] + [np.full(s, np.nan, np.float32) for s in shapes[-4:]]
    *_, one, two, three, four = on_the_host(function, arrays)
    turned = np.concatenate([-row[:, 512:1024], row[:, :512]], 1)
    np.testing.assert_allclose(one, np.exp(turned), 1e-6)
    np.testing.assert_array_equal(two, row[:, 1024:].reshape(64, 8).T)
    for root in (three, four):
        np.testing.assert_allclose(root, np.sqrt(row.T), 1e-6)


def test_what_needs_the_other_waits_for_it() -> None:
    def make(x: relax.Expr) -> list[relax.Expr]:
        transposed = relax.op.permute_dims(x)
        return [transposed, relax.op.cumsum(transposed, 0), relax.op.exp(x)]

    module = merged(make, (4, 8))
    assert calls(module) == 3


@pytest.mark.parametrize(
    ("make", "shape", "launches"),
    [
        (lambda x: [relax.op.exp(x), relax.op.sqrt(x)], (1, SMALL), 1),
        (lambda x: [relax.op.exp(x), relax.op.sqrt(x)], (1, 2 * SMALL), 2),  # large
        (lambda x: [relax.op.exp(x), relax.op.sum(x, [1])], (4, 8), 2),  # not one by one
        (lambda x: [relax.op.exp(x)], (4, 8), 1),
        (lambda x: [relax.op.multiply(x, relax.const(float(i))) for i in range(20)], (4, 8), 2),
    ],
)
def test_how_many_launches_there_are(make: Make, shape: tuple[int, ...], launches: int) -> None:
    assert calls(merged(make, shape)) == launches
    assert MOST < 20


def test_a_decoding_step_launches_one_function_beside_its_chains() -> None:
    """Queries and keys are rotated, and values are copied, as outputs of the layer."""
    loaded = load(decoder(heads=16, cached=64).SerializeToString(), {})
    matches = partition(loaded.module, 1e12, 1e11).matches
    plain = [
        Replacement(m, (Installed(f"chain_{i}", m.chain, primfunc(m.chain, m.shapes, m.starts)),))
        for i, m in enumerate(matches)
    ]
    module = scheduled(install(loaded.module, plain))
    names = [str(n.name_hint) for n, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    (other,) = [n for n in names if not n.startswith("chain_")]
    assert other.endswith("_and_2_beside")
