"""Operators of ai.onnx.ml as ONNX's own, beside onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((6, 5)).astype(np.float32)


def model(
    kind: str, *arrays: np.ndarray, dtypes: tuple[type, ...] = (np.float32,), opset: int = 17,
    **attributes: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    names = [f"y{i}" for i in range(len(dtypes))]
    node = helper.make_node(kind, list(given), names, "n", domain="ai.onnx.ml", **attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    results = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(d)), None)
        for n, d in zip(names, dtypes, strict=True)
    ]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph([node], "one", values, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


@pytest.mark.parametrize("x", [X, X.astype(np.int64), X.astype(np.float64)], ids=["f4", "i8", "f8"])
def test_a_scaler(x: np.ndarray) -> None:
    columns = {n: RANDOM.standard_normal(5).tolist() for n in ("offset", "scale")}
    agree(*model("Scaler", x, **columns))
    agree(*model("Scaler", x, offset=[0.5], scale=[2.0]))


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_divided_by_their_norm(norm: str, opset: int) -> None:
    rows = X.copy()
    rows[2] = 0
    agree(*model("Normalizer", rows, norm=norm, opset=opset))


def test_a_binarizer() -> None:
    agree(*model("Binarizer", X, threshold=0.25))


@pytest.mark.parametrize("x", [X, X[0], X.astype(np.int64), X.reshape(2, 3, 5)])
@pytest.mark.parametrize("numbers", [[1, 0, 3], [4]])
def test_columns_by_their_numbers(x: np.ndarray, numbers: list[int]) -> None:
    agree(*model("ArrayFeatureExtractor", x, np.array(numbers), dtypes=(x.dtype.type,)))


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("intercepts", [True, False])
def test_a_linear_regressor(targets: int, intercepts: bool) -> None:
    given: dict[str, object] = {"coefficients": RANDOM.standard_normal(5 * targets).tolist()}
    if intercepts:
        given["intercepts"] = RANDOM.standard_normal(targets).tolist()
    agree(*model("LinearRegressor", X, targets=targets, **given))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [[0, 1], [7, 3, 5]])
def test_a_linear_classifier(classes: list[int], transform: str) -> None:
    given = {
        "classlabels_ints": classes, "post_transform": transform,
        "coefficients": RANDOM.standard_normal(5 * len(classes)).tolist(),
        "intercepts": RANDOM.standard_normal(len(classes)).tolist(),
    }  # fmt: skip
    agree(*model("LinearClassifier", X, dtypes=(np.int64, np.float32), **given))


CLASSES = {"coefficients": [0.0] * 10, "intercepts": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("kind", "attributes", "words"),
    [
        ("Normalizer", {"norm": "L3"}, "its norm 'L3' is not known"),
        ("LinearClassifier", {**CLASSES, "classlabels_strings": ["a", "b"]}, "classes are texts"),
        ("LinearClassifier", {**CLASSES, "classlabels_ints": [0, 1, 2]}, "3 classes, and .* for 2"),
        ("LinearRegressor", {"coefficients": [1.0]}, "1 coefficients for 1 x 5"),
        ("LinearRegressor", {"coefficients": [1.0] * 5, "post_transform": "PROBIT"}, "'PROBIT'"),
        ("ZipMap", {"classlabels_int64s": [0]}, "export with the option zipmap=False"),
    ],
)
def test_what_is_not_replaced(kind: str, attributes: dict[str, object], words: str) -> None:
    dtypes = (np.int64, np.float32) if kind == "LinearClassifier" else (np.float32,)
    made, _ = model(kind, X, dtypes=dtypes, **attributes)
    with pytest.raises(ModelError, match=words):
        rewrite(made)


def test_other_operators_of_the_domain_are_named() -> None:
    made, _ = model("SVMRegressor", X, coefficients=[1.0] * 5)
    with pytest.raises(ModelError, match=r"'SVMRegressor' of domain 'ai.onnx.ml', .* not known"):
        load(made.SerializeToString(), {})
