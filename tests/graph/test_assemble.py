"""Kernels put back: several in a row, packed constants, and the loops of what is left."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from tvm import relax

from mcfuser.chain import Chain, products, subchain
from mcfuser.codegen.llvm import rest
from mcfuser.codegen.llvm.module import build_library, cpu_target
from mcfuser.devices.cpu import probe_cpu
from mcfuser.errors import ChainError
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.partition import partition
from mcfuser.graph.selection import ChainMatch
from tests.support.computed_naively import both
from tests.support.naive import primfunc
from tests.support.nets import Net
from tests.support.paths import FIXTURES


def feed_forward() -> tuple[Loaded, ChainMatch]:
    loaded = load((FIXTURES / "feed_forward_relu.onnx").read_bytes(), {})
    (match,) = partition(loaded.module, 1e11, 1e10).matches
    return loaded, match


def kernel(chain: Chain, match: ChainMatch, name: str) -> Installed:
    return Installed(name, chain, primfunc(chain, match.shapes, match.starts))


def parts(match: ChainMatch) -> list[Chain]:
    """The chain in two, after the map that follows the first product."""
    second = products(match.chain)[1].out
    names = [o.out for o in match.chain.operators]
    cut = names.index(second)
    return [subchain(match.chain, p, f"part{i}") for i, p in enumerate((names[:cut], names[cut:]))]


def agrees(loaded: Loaded, replacement: Replacement, folder: Path) -> None:
    path = folder / f"module{len(list(folder.iterdir()))}.so"
    path.write_bytes(build_library(install(loaded.module, [replacement]), probe_cpu()))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    x = np.random.default_rng(0).standard_normal(loaded.inputs[0].shape).astype(np.float32)
    session = onnxruntime.InferenceSession(FIXTURES / "feed_forward_relu.onnx")
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-4)


def test_kernels_pass_each_other_what_is_between(tmp_path: Path) -> None:
    loaded, match = feed_forward()
    kernels = tuple(kernel(c, match, f"k{i}") for i, c in enumerate(parts(match)))
    agrees(loaded, Replacement(match, kernels), tmp_path)


def test_a_packed_constant_takes_the_place_of_the_original(tmp_path: Path) -> None:
    """A kernel that wants twice the weight, given half of it."""
    loaded, match = feed_forward()
    whole = kernel(match.chain, match, "whole")
    weight = match.constants["B"]
    spoiled = Replacement(match, (Installed("whole", match.chain, whole.func, {"B": weight * 0}),))
    with pytest.raises(AssertionError):
        agrees(loaded, spoiled, tmp_path)
    kept = Replacement(match, (Installed("whole", match.chain, whole.func, {"B": weight.copy()}),))
    agrees(loaded, kept, tmp_path)


def test_a_missing_kernel_is_named() -> None:
    loaded, match = feed_forward()
    first, second = parts(match)
    with pytest.raises(ChainError, match="nothing before it writes"):
        install(loaded.module, [Replacement(match, (kernel(second, match, "k"),))])
    with pytest.raises(ChainError, match="writes"):
        install(loaded.module, [Replacement(match, (kernel(first, match, "k"),))])


def test_no_pass_touches_a_kernel() -> None:
    loaded, match = feed_forward()
    module = install(loaded.module, [Replacement(match, (kernel(match.chain, match, "k"),))])
    assert module["k"].attrs["tirx.is_scheduled"]
    assert "matmul" not in module["main"].script()


def rest_of(build: object, *shapes: tuple[int, ...]) -> tvm.tirx.PrimFunc:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(build(*inputs))  # type: ignore[operator]
        builder.emit_func_output(out)
    with cpu_target(probe_cpu()):
        module = rest.legalize()(builder.get())
    (function,) = (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return function


def normal(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def soft(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


REST = {
    "exp": (relax.op.exp, np.exp),
    "tanh": (relax.op.tanh, np.tanh),
    "erf": (relax.op.erf, np.vectorize(math.erf)),
    "gelu": (relax.op.nn.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2),
    "softmax": (relax.op.nn.softmax, soft),
    "sum": (lambda x: relax.op.sum(x, axis=-1), lambda x: x.sum(-1)),
    "normalization": (
        lambda x: relax.op.nn.layer_norm(
            x, relax.const(np.ones(272, "f4")), relax.const(np.zeros(272, "f4")), [-1]
        ),
        normal,
    ),
}


@pytest.mark.parametrize("name", REST)
def test_what_no_kernel_computes_is_parallel_and_right(name: str) -> None:
    build, meaning = REST[name]
    function = rest.parallel(rest_of(build, (128, 272)))
    assert "T.parallel" in function.script()
    x = np.random.default_rng(0).standard_normal((128, 272)).astype(np.float32) * 3
    run = tvm.compile(function.with_attr("global_symbol", "main"), target=cpu_target(probe_cpu()))
    buffers = [np.zeros([int(d) for d in p.shape], "f4") for p in function.params]
    buffers[0] = x
    if name == "normalization":
        buffers[1] += 1
    tensors = [tvm.runtime.tensor(b) for b in buffers]
    run["main"](*tensors)
    expected = meaning(x.astype(np.float64))
    error = np.linalg.norm(tensors[-1].numpy() - expected) / np.linalg.norm(expected)
    assert error < 1e-6


def test_small_functions_stay_on_one_core() -> None:
    assert "T.parallel" not in rest.parallel(rest_of(relax.op.exp, (8, 16))).script()


def shared_view() -> onnx.ModelProto:
    """A norm and a sum after a product read the same permuted view of an input."""
    net = Net()
    view = net.op("Transpose", net.input("x", 2, 32, 48), perm=[0, 2, 1])
    normal = net.op("LayerNormalization", view, net.weight(32), net.weight(32))
    hidden = net.op("Relu", net.op("MatMul", normal, net.weight(32, 64)))
    product = net.op("Mul", net.op("MatMul", hidden, net.weight(64, 32)), net.weight(32))
    return net.model(net.op("Reshape", net.op("Add", view, product), net.ints(2, -1)))


def test_a_view_of_a_chain_that_is_left_to_tvm_stays(tmp_path: Path) -> None:
    """Any of the chains may become kernels, and the others be left: the results are the same."""
    model = shared_view()
    loaded = load(model.SerializeToString(), {})
    matches = partition(loaded.module, 1e12, 1e11, lambda c: len(c.operators) ** 2).matches
    assert len(matches) > 1
    for count in range(1, len(matches) + 1):
        for some in itertools.combinations(matches, count):
            for found, expected in both(model, loaded, some, tmp_path):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
