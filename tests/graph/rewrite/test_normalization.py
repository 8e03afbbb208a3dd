"""Normalizations of onnxruntime's, and results of ONNX's that TVM leaves out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node, run

RANDOM = np.random.default_rng(0)
TOLERANCE = {np.float32: 1e-5, np.float16: 8e-3}
ORT = "com.microsoft"


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_a_layer_normalization_with_its_mean_and_deviation(axis: int) -> None:
    given = {"x": drawn(3, 4, 5)}
    row = given["x"].shape[axis:]
    weights = {"scale": drawn(*row), "shift": drawn(*row)}
    model = one_node("LayerNormalization", ["x", *weights], 3, given, weights, axis=axis)
    agree(model, given, 1e-4)


def test_a_plain_layer_normalization_stays() -> None:
    given, weights = {"x": drawn(3, 4)}, {"scale": drawn(4), "shift": drawn(4)}
    model = one_node("LayerNormalization", ["x", *weights], 1, given, weights)
    rewrite(model)
    assert [n.op_type for n in model.graph.node] == ["LayerNormalization"]


@pytest.mark.parametrize("opset", [11, 16])
def test_a_layer_normalization_older_than_onnx_has_it(opset: int) -> None:
    """onnxruntime had the operator first, in ONNX's domain."""
    given, weights = {"x": drawn(2, 3, 4)}, {"scale": drawn(4), "shift": drawn(4)}
    model = one_node(
        "LayerNormalization", ["x", *weights], 1, given, weights, opset=opset, epsilon=1e-6
    )
    agree(model, given)
    assert "layer_norm" in load(model.SerializeToString(), {}).module.script()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("opset", [14, 21])
def test_a_simplified_normalization(dtype: type, opset: int) -> None:
    given, weights = {"x": drawn(2, 3, 16, dtype=dtype)}, {"scale": drawn(16, dtype=dtype)}
    model = one_node(
        "SimplifiedLayerNormalization", ["x", "scale"], 1, given, weights, opset=opset,
        axis=-1, epsilon=1e-6, stash_type=1,
    )  # fmt: skip
    agree(model, given, TOLERANCE[dtype])
    load(model.SerializeToString(), {})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_root_mean_square_over_several_axes(axis: int) -> None:
    given = {"x": drawn(3, 4, 5)}
    model = one_node(
        "RMSNormalization", ["x", "scale"], 1, given, {"scale": drawn(*(3, 4, 5)[axis:])},
        opset=23, axis=axis,
    )  # fmt: skip
    agree(model, given)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["plain", "bias", "row", "no shift"])
def test_a_sum_that_is_normalized(dtype: type, form: str) -> None:
    given = {"x": drawn(2, 3, 16, dtype=dtype), "skip": drawn(2, 3, 16, dtype=dtype)}
    if form == "row":
        given["skip"] = drawn(1, 3, 16, dtype=dtype)
    weights = {n: drawn(16, dtype=dtype) for n in ("gamma", "beta", "bias")}
    names = {
        "plain": ["gamma", "beta"], "bias": ["gamma", "beta", "bias"], "row": ["gamma", "beta"],
        "no shift": ["gamma"],
    }[form]  # fmt: skip
    weights = {n: weights[n] for n in names}
    model = one_node(
        "SkipLayerNormalization", [*given, *weights], 4, given, weights, ORT, epsilon=1e-5
    )
    for i in (1, 2):
        model.graph.node[0].output[i] = ""
    del model.graph.output[1:3]
    agree(model, given, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
def test_a_sum_that_is_divided_by_its_root_mean_square(dtype: type, bias: bool) -> None:
    given = {"x": drawn(2, 3, 16, dtype=dtype), "skip": drawn(2, 3, 16, dtype=dtype)}
    weights = {n: drawn(16, dtype=dtype) for n in ("gamma", "bias")[: 1 + bias]}
    model = one_node(
        "SkipSimplifiedLayerNormalization", [*given, *weights], 4, given, weights, ORT,
        epsilon=1e-6,
    )  # fmt: skip
    for i in (1, 2):
        model.graph.node[0].output[i] = ""
    del model.graph.output[1:3]
    agree(model, given, TOLERANCE[dtype])


@pytest.mark.parametrize("slots", ["ids segments mask", "ids", "ids segments mask where"])
def test_embeddings_that_are_added_and_normalized(slots: str) -> None:
    given = {
        "ids": RANDOM.integers(0, 20, (2, 5)), "segments": RANDOM.integers(0, 2, (2, 5)),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
        "where": RANDOM.integers(0, 9, (2, 5)),
    }  # fmt: skip
    given = {n: a.astype(np.int32) for n, a in given.items() if n in slots.split()}
    tables = {"words": drawn(20, 8), "places": drawn(9, 8), "kinds": drawn(2, 8)}
    if "segments" not in given:
        del tables["kinds"]
    weights = tables | {"gamma": drawn(8), "beta": drawn(8)}
    order = ("ids", "segments", "words", "places", "kinds", "gamma", "beta", "mask", "where")
    names = [n if n in given or n in weights else "" for n in order]
    while not names[-1]:
        names.pop()
    model = one_node(
        "EmbedLayerNormalization", names, 3, given, weights, ORT,
        dtypes=[np.float32, np.int32, np.float32], epsilon=1e-5,
    )  # fmt: skip
    agree(model, given)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_quantized_embeddings(masked: bool, segments: bool) -> None:
    """As onnxruntime quantizes what its optimizer has fused."""
    width, ids = 12, np.array([[1, 4, 2], [0, 3, 3]], np.int32)
    given = {"ids": ids} | ({"segments": ids % 2} if segments else {})
    given |= {"mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32)} if masked else {}
    tables = {"word": (5, width), "place": (4, width), "segment": (2, width)}
    tables |= {"gamma": (width,), "beta": (width,)}
    weights: dict[str, np.ndarray] = {
        n: RANDOM.integers(0, 255, shape).astype(np.uint8) for n, shape in tables.items()
    }
    weights |= {f"{n}_scale": np.float32(RANDOM.uniform(0.01, 0.02)) for n in tables}
    weights |= {f"{n}_zero": np.uint8(RANDOM.integers(90, 150)) for n in tables}
    order = ["ids", "segments" if segments else "", *tables, "mask" if masked else ""]
    order += [f"{n}_{kind}" for kind in ("scale", "zero") for n in tables]
    if not segments:
        order = ["" if n.startswith("segment") else n for n in order]
        weights = {n: w for n, w in weights.items() if not n.startswith("segment")}
    model = one_node(
        "QEmbedLayerNormalization", order, 2, given, weights, ORT, dtypes=[np.float32, np.int32],
        epsilon=1e-5,
    )  # fmt: skip
    agree(model, given, 1e-4)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_division_by_a_norm(p: int, axis: int) -> None:
    given = {"x": drawn(4, 5)}
    given["x"][2] = given["x"][:, 3] = 0
    agree(one_node("LpNormalization", ["x"], 1, given, axis=axis, p=p), given)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_groups_of_channels(groups: int) -> None:
    given, weights = {"x": drawn(2, 6, 4, 5)}, {"scale": drawn(6), "shift": drawn(6)}
    model = one_node(
        "GroupNormalization", ["x", *weights], 1, given, weights, opset=21, num_groups=groups
    )
    agree(model, given)
    load(model.SerializeToString(), {})


def test_half_precision_is_summed_in_single() -> None:
    """Squares of 300 are too large for float16."""
    given = {"x": np.full((1, 8), 300, np.float16), "skip": np.zeros((1, 8), np.float16)}
    given["x"][0, ::2] = -300
    model = one_node(
        "SkipLayerNormalization", ["x", "skip", "gamma"], 1, given,
        {"gamma": np.ones(8, np.float16)}, ORT,
    )  # fmt: skip
    made = onnx.ModelProto.FromString(model.SerializeToString())
    rewrite(made)
    np.testing.assert_allclose(np.abs(run(made, given)[0]), 1)
