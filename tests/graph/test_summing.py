"""What TVM sums of narrow values is summed in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from mcfuser.graph.matching import called
from mcfuser.graph.summing import summed_in_float32
from tests.support.lifted import computed

MANY = 5000
"""Ones that half precision counts to 2,048, and bfloat16 to 256."""
Make = Callable[..., relax.Expr]


def module_of(make: Make, *shapes: tuple[int, ...], dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = builder.emit_output(builder.normalize(make(*inputs)))
        builder.emit_func_output(made)
    return builder.get()


@pytest.mark.parametrize(
    ("make", "shapes", "wanted"),
    [
        (lambda x: op.sum(x, axis=[1]), [(2, MANY)], MANY),
        (lambda x: op.mean(x, axis=[1]), [(2, MANY)], 1.0),
        (lambda x: op.variance(x, axis=[1]), [(2, MANY)], 0.0),
        (lambda x: op.cumsum(x, axis=1), [(2, MANY)], np.arange(1, MANY + 1)),
        (lambda x: op.nn.softmax(x, axis=1), [(2, MANY)], 1 / MANY),
        (lambda x: op.nn.log_softmax(x, axis=1), [(2, MANY)], -np.log(MANY)),
        (lambda x: op.nn.avg_pool1d(x, pool_size=MANY), [(1, 1, MANY)], 1.0),
        (lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)), [(1, 1, 100, 50)], 1.0),
        (lambda x, y: op.matmul(x, y), [(MANY,), (MANY,)], MANY),
        (lambda x, w: op.nn.conv1d(x, w), [(1, MANY, 3), (1, MANY, 3)], 3 * MANY),
        (lambda x, w: op.nn.conv1d_transpose(x, w), [(1, MANY, 1), (MANY, 1, 3)], MANY),
    ],
    ids=["sum", "mean", "variance", "running sum", "softmax", "log softmax", "pooling",
         "adaptive pooling", "product", "convolution", "transposed convolution"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_ones_are_counted(
    make: Make, shapes: list[tuple[int, ...]], wanted: object, dtype: str, tmp_path: Path
) -> None:
    module = summed_in_float32(module_of(make, *shapes, dtype=dtype))
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    (found,) = computed(module, [np.ones(s, kind) for s in shapes], tmp_path)
    assert found.dtype == kind
    expected = np.broadcast_to(wanted, found.shape).astype(kind).astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-2, atol=1e-6)


def test_a_product_keeps_narrow_operands() -> None:
    """A tensor core multiplies them so, and adds in float32."""
    module = module_of(op.matmul, (4, 8), (8, 4), dtype="float16")
    assert list(called(summed_in_float32(module)["main"].body)) == ["relax.matmul", "relax.astype"]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(lambda x: op.sum(x), "float32"), (lambda x: op.exp(x), "float16"),
     (lambda x: op.max(x), "float16"), (lambda x: op.sum(x), "int64")],
    ids=["wide", "a map", "a maximum", "integers"],
)  # fmt: skip
def test_other_modules_stay(make: Make, dtype: str) -> None:
    module = module_of(make, (4, 8), dtype=dtype)
    assert summed_in_float32(module) is module
