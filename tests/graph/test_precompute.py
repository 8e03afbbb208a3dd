"""Operators of constants alone: they are the numbers that TVM computes, without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.graph.dataflow import array
from mcfuser.graph.load import load
from mcfuser.graph.precompute import precomputed
from tests.support.computed_naively import agreed
from tests.support.nets import Net

X = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)
WHOLE = X.astype(np.int64)


def dequantized(dtype: type[np.generic], scale: object, zero: object, axis: int) -> relax.Expr:
    name = str(np.dtype(dtype))
    numbers = relax.const(np.asarray(scale), "float32"), relax.const(np.asarray(zero), name)
    return relax.op.dequantize(relax.const((X + 20).astype(dtype), name), *numbers, axis)


_BITS = np.random.default_rng(0).integers(0, 1 << 16, (2, 20_000)).astype(np.uint16)
HALVES = _BITS.view(np.float16)
"""Any of them: normal and subnormal, infinite, and none."""
FLOATS = np.concatenate([HALVES[0].astype(np.float32) * f for f in (1, 1 + 2.0**-11, 1e-3)])


def half(op: Callable[..., relax.Expr], count: int) -> Callable[[], relax.Expr]:
    return lambda: op(*(relax.const(h, "float16") for h in HALVES[:count]))


CASES: dict[str, Callable[[], relax.Expr]] = {
    "add halves": half(relax.op.add, 2),
    "subtract halves": half(relax.op.subtract, 2),
    "multiply halves": half(relax.op.multiply, 2),
    "divide halves": half(relax.op.divide, 2),
    "sqrt of halves": half(relax.op.sqrt, 1),
    "negative halves": half(relax.op.negative, 1),
    "halves made floats": half(lambda x: relax.op.astype(x, "float32"), 1),
    "floats made halves": lambda: relax.op.astype(relax.const(FLOATS), "float16"),
    "add": lambda: relax.op.add(relax.const(X), relax.const(X[0])),
    "subtract": lambda: relax.op.subtract(relax.const(WHOLE, "int64"), relax.const(3, "int64")),
    "multiply": lambda: relax.op.multiply(relax.const(X), relax.const(X[:, :1])),
    "divide": lambda: relax.op.divide(relax.const(X), relax.const(X[1])),
    "divide by zero": lambda: relax.op.divide(relax.const(np.abs(X) + 1), relax.const(X * 0)),
    "negative": lambda: relax.op.negative(relax.const(WHOLE, "int64")),
    "sqrt": lambda: relax.op.sqrt(relax.const(np.abs(X))),
    "less": lambda: relax.op.less(relax.const(WHOLE, "int64"), relax.const(0, "int64")),
    "where": lambda: relax.op.where(
        relax.op.less(relax.const(X), relax.const(0.0)), relax.const(X[0]), relax.const(X)
    ),
    "reshape": lambda: relax.op.reshape(relax.const(X), (4, 6)),
    "expand_dims": lambda: relax.op.expand_dims(relax.const(X), [0, 2]),
    "squeeze": lambda: relax.op.squeeze(relax.const(X[:1]), [0]),
    "permute_dims": lambda: relax.op.permute_dims(relax.const(X), [2, 0, 1]),
    "permute_dims in the opposite order": lambda: relax.op.permute_dims(relax.const(X)),
    "astype": lambda: relax.op.astype(relax.const(WHOLE, "int64"), "int32"),
    "one scale": lambda: dequantized(np.uint8, 0.5, 7, 1),
    "scales": lambda: dequantized(np.int8, [0.5, 0.1, 3.0], 0, 1),
    "scales and zero points": lambda: dequantized(np.int8, [0.5, 0.1], [1, -2], 0),
    "scales of a bias": lambda: dequantized(np.int32, [0.5, 0.1, 1, 0.7], [0, 0, 0, 0], 2),
    "take": lambda: relax.op.take(
        relax.const(X), relax.const(np.array([1, 0, 2]), "int64"), axis=1
    ),
    "slice": lambda: relax.op.strided_slice(relax.const(X), [2, 1], [1, 0], [99, 2]),
    "slice in steps": lambda: relax.op.strided_slice(relax.const(X), [2], [0], [4], [3]),
    "an extent": lambda: relax.op.take(
        relax.op.shape_to_tensor(relax.op.shape_of(relax.const(X))), relax.const(2, "int64"), axis=0
    ),
}  # fmt: skip

LEFT: dict[str, Callable[[], relax.Expr]] = {
    "a row that is not there": lambda: relax.op.take(
        relax.const(X), relax.const(np.array([9]), "int64"), axis=1, mode="clip"
    ),
    "division of integers": lambda: relax.op.divide(
        relax.const(WHOLE, "int64"), relax.const(np.abs(WHOLE) + 3, "int64")
    ),
    "floats made integers": lambda: relax.op.astype(relax.const(X), "int64"),
    "a type that numpy has not": lambda: relax.op.sqrt(relax.const(np.abs(X), "bfloat16")),
    "a row by number": lambda: relax.op.take(relax.const(X), relax.prim_value(1), axis=1),
    "a slice backwards": lambda: relax.op.strided_slice(relax.const(X), [2], [3], [0], [-1]),
    "a slice from the end": lambda: relax.op.strided_slice(relax.const(X), [2], [-2], [4]),
    "an operator that is not in the table": lambda: relax.op.exp(relax.const(X)),
}


def module_of(build: Callable[[], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", [relax.Var("unused", relax.TensorType((1,), "float32"))]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(build()))
        builder.emit_func_output(result)
    return builder.finalize()


def bound(module: tvm.IRModule) -> list[relax.Expr]:
    return [b.value for block in module["main"].body.blocks for b in block.bindings]


def constants(module: tvm.IRModule) -> list[NDArray[Any]]:
    """The constants that are left when unread values are gone."""
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    body = tvm.transform.Sequential(clean)(module)["main"].body
    found: list[NDArray[Any]] = []
    relax.analysis.post_order_visit(
        body, lambda e: found.append(a) if (a := array(e)) is not None else None
    )
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_number_is_tvm_s(case: str) -> None:
    module = precomputed(module_of(CASES[case]))
    (found,) = constants(module)
    (expected,) = constants(relax.transform.FoldConstant()(module_of(CASES[case])))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", LEFT)
def test_what_numpy_would_compute_otherwise_stays(case: str) -> None:
    module = precomputed(module_of(LEFT[case]))
    assert any(isinstance(value, relax.Call) for value in bound(module))


def test_normalizations_and_indices_of_a_model_need_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exporters leave batch normalization after a product as it is, and index by constants."""
    net = Net()
    x = net.op("MatMul", net.input("x", 3, 8), net.weight(8, 8))
    positive = [net.const(net.random.uniform(0.5, 2, 8)) for _ in range(4)]
    x = net.op("BatchNormalization", x, *positive)
    y = net.op("Gather", x, net.const(-1, np.int64), axis=0)
    model = net.model(net.op("Add", x, y))
    agreed(model, tmp_path)
    monkeypatch.setattr(relax.transform, "FoldConstant", relax.transform.CanonicalizeBindings)
    main = load(model.SerializeToString(), {}).module["main"]
    values = [b.value for block in main.body.blocks for b in block.bindings]
    names = {v.op.name for v in values if isinstance(v, relax.Call)}
    assert "relax.matmul" in names
    assert not {"relax.sqrt", "relax.divide", "relax.less", "relax.shape_to_tensor"} & names
