"""Operators of ai.onnx.ml: linear models and what prepares their inputs, as scikit-learn's exporter
writes them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mcfuser.graph.rewrite.body import NodeBody

_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64


def scaler(body: NodeBody) -> list[str | None]:
    """Scaler: (x - offset) scale, for each column or for all."""
    x = body.cast(body.read(0), _FLOAT)
    offset, scale = body.attribute("offset", [0.0]), body.attribute("scale", [1.0])
    moved = body.op("Sub", x, body.const(offset, _FLOAT))
    return [body.op("Mul", moved, body.const(scale, _FLOAT))]


def normalizer(body: NodeBody) -> list[str | None]:
    """Normalizer: each row divided by its largest element or its norm, unless that is zero."""
    x = body.cast(body.read(0), _FLOAT)
    match body.attribute("norm", "MAX"):
        case "MAX":
            size = body.reduced("ReduceMax", x, [-1], kept=True)
        case "L1":
            size = body.sum(body.op("Abs", x), -1, kept=True)
        case "L2":
            size = body.op("Sqrt", body.sum(body.op("Mul", x, x), -1, kept=True))
        case other:
            raise body.refusal(f"its norm '{other}' is not known")
    empty = body.op("Equal", size, body.like(0.0, size))
    return [body.op("Div", x, body.op("Where", empty, body.like(1.0, size), size))]


def binarizer(body: NodeBody) -> list[str | None]:
    """Binarizer: 1 above a threshold, else 0."""
    x = body.read(0)
    above = body.op("Greater", x, body.like(body.attribute("threshold", 0.0), x))
    return [body.cast(above, body.dtype(x))]


def features(body: NodeBody) -> list[str | None]:
    """ArrayFeatureExtractor: columns by their numbers; a vector is one row."""
    x, numbers = body.reads(2)
    (columns,) = body.shape(x)[-1:]
    rows = x if len(body.shape(x)) > 1 else body.reshape(x, 1, columns)
    return [body.op("Gather", rows, body.reshape(numbers, -1), axis=-1)]


def linear_regressor(body: NodeBody) -> list[str | None]:
    """LinearRegressor: x coefficients' + intercepts, a row of coefficients for each target."""
    return [_transformed(body, _linear(body, body.attribute("targets", 1)))]


def linear_classifier(body: NodeBody) -> list[str | None]:
    """LinearClassifier: the number of the class with the highest score, and the scores."""
    classes = body.attribute("classlabels_ints", None)
    if classes is None:
        raise body.refusal("its classes are texts; give the classes numbers before training")
    x = body.read(0)
    rows, rest = divmod(len(body.attribute("coefficients", [])), body.shape(x)[-1])
    if rest or rows != len(classes) or rows < 2:
        raise body.refusal(f"it has {len(classes)} classes, and coefficients for {rows}")
    scores = _linear(body, rows)
    best = body.op("ArgMax", scores, axis=1, keepdims=0)
    label = body.op("Gather", body.const(classes, _INT64), best)
    return [label, _transformed(body, scores)]


def maps(body: NodeBody) -> list[str | None]:
    """ZipMap: its result is a map for each row, and no tensor."""
    raise body.refusal("its results are maps, and no tensors; export with the option zipmap=False")


def _linear(body: NodeBody, rows: int) -> str:
    x = body.cast(body.read(0), _FLOAT)
    if len(body.shape(x)) == 1:
        x = body.reshape(x, 1, -1)
    given = np.asarray(body.attribute("coefficients", []), np.float32)
    if given.size != rows * body.shape(x)[-1]:
        columns = body.shape(x)[-1]
        raise body.refusal(f"it has {given.size} coefficients for {rows} x {columns}")
    product = body.op("MatMul", x, body.const(given.reshape(rows, -1).T, _FLOAT))
    if (intercepts := body.attribute("intercepts", None)) is None:
        return product
    return body.op("Add", product, body.const(intercepts, _FLOAT))


def _transformed(body: NodeBody, scores: str) -> str:
    """Scores after the transformation that the node names."""
    match body.attribute("post_transform", "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return body.op("Sigmoid", scores)
        case "SOFTMAX":
            return body.softmax(scores)
        case other:
            raise body.refusal(f"its transformation '{other}' of scores is not known")
