"""onnxruntime's layers of quantized numbers become those of the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

from mcfuser.graph.load import load
from tests.support.one_node import Arrays, agree, expected, one_node, replaced, run

RANDOM = np.random.default_rng(0)
BYTES = [np.uint8, np.int8]


def drawn(dtype: type, *shape: int) -> np.ndarray:
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def off_by_one(
    kind: str, names: Sequence[str], given: Arrays, constants: Arrays, **attributes: object
) -> None:
    """The last bit may differ: onnxruntime rounds integers, and looks exponentials up."""
    dtype = constants["y_zero"].dtype.type
    model = one_node(kind, names, 1, given, constants, "com.microsoft", dtypes=[dtype])
    (node,) = model.graph.node
    node.attribute.extend(helper.make_attribute(n, value) for n, value in attributes.items())
    (found,), (wanted,) = run(replaced(model), given), expected(model, given)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert (found == wanted).mean() > 0.9
    assert np.unique(found).size > 5
    load(model.SerializeToString(), {})


def numbers(name: str, scale: float, zero: int, dtype: type = np.uint8) -> dict[str, np.ndarray]:
    return {f"{name}_scale": np.float32(scale), f"{name}_zero": np.asarray(zero, dtype)}


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("opset", "axis"), [(12, 2), (13, -1), (13, 3)])
def test_softmax(opset: int, axis: int, dtype: type) -> None:
    zero = 0 if dtype is np.uint8 else -128
    constants = numbers("x", 0.03, 3, dtype) | numbers("y", 1 / 256, zero, dtype)
    given = {"x": drawn(dtype, 2, 3, 4, 5)}
    off_by_one("QLinearSoftmax", ["x", *constants], given, constants, axis=axis, opset=opset)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_products(dtype: type, rows: bool, transposed: int) -> None:
    count = (6,) if rows else ()
    constants = numbers("a", 0.02, 120) | {
        "b": drawn(dtype, *((6, 16) if transposed else (16, 6))),
        "b_scale": (0.01 + 0.01 * RANDOM.random(count)).astype(np.float32),
        "b_zero": np.full(count, 3, dtype),
        "c": RANDOM.integers(-3000, 3000, 6).astype(np.int32),
    } | numbers("y", 0.3, 100)  # fmt: skip
    given = {"a": drawn(np.uint8, 5, 16)}
    off_by_one("QGemm", ["a", *constants], given, constants, transB=transposed)


def test_products_that_are_real_numbers() -> None:
    constants = numbers("a", 0.02, 120) | {"b": drawn(np.int8, 16, 6)} | numbers("b", 0.1, 0)
    constants["b_zero"] = np.asarray(0, np.int8)
    given = {"a": drawn(np.uint8, 5, 16)}
    model = one_node(
        "QGemm", ["a", *constants], 1, given, constants, "com.microsoft", dtypes=[np.float32]
    )
    agree(model, given, 1e-4)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("last", [0, 1])
def test_pooling(dtype: type, last: int) -> None:
    constants = numbers("x", 0.01, 3, dtype) | numbers("y", 0.01, 5, dtype)
    given = {"x": drawn(dtype, 2, 8, 8, 8)}
    names = ["x", *constants]
    off_by_one("QLinearGlobalAveragePool", names, given, constants, channels_last=last)
    off_by_one(
        "QLinearAveragePool", names, given, constants, channels_last=last,
        kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", BYTES)
def test_concatenations(dtype: type) -> None:
    given = {"a": drawn(dtype, 2, 3), "b": drawn(dtype, 2, 4)}
    constants = numbers("y", 0.04, 3, dtype)
    constants |= numbers("a", 0.02, 9, dtype) | numbers("b", 0.05, -9 % 128, dtype)
    names = ["y_scale", "y_zero", "a", "a_scale", "a_zero", "b", "b_scale", "b_zero"]
    off_by_one("QLinearConcat", names, given, constants, axis=1)


def test_choices() -> None:
    given = {"c": RANDOM.random((4, 5)) < 0.5, "a": drawn(np.uint8, 4, 5), "b": drawn(np.uint8, 5)}
    constants = numbers("a", 0.02, 9) | numbers("b", 0.05, 7) | numbers("y", 0.03, 8)
    names = ["c", "a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]
    off_by_one("QLinearWhere", names, given, constants)
