"""onnxruntime's activations and fused products as ONNX's operators."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.lifted import computed
from tests.support.one_node import agree, one_node, replaced, run

RANDOM = np.random.default_rng(0)
TOLERANCE = {np.float32: 1e-5, np.float16: 8e-3}


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def checked(kind: str, *arrays: np.ndarray, opset: int = 17, **attributes: object) -> None:
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    model = one_node(kind, list(given), 1, given, domain="com.microsoft", opset=opset, **attributes)
    agree(model, given, TOLERANCE[arrays[0].dtype.type])


@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize("kind", ["Gelu", "FastGelu", "QuickGelu"])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 16)])
def test_activations(kind: str, shape: tuple[int, ...], opset: int) -> None:
    checked(kind, drawn(*shape), opset=opset)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["FastGelu", "BiasGelu"])
def test_activations_of_a_sum(kind: str, dtype: type) -> None:
    if kind == "BiasGelu" and dtype is np.float16:
        pytest.skip("onnxruntime has it in float32 alone")
    checked(kind, drawn(2, 3, 16, dtype=dtype), drawn(16, dtype=dtype))


def test_a_gate_by_gelu_that_onnxruntime_has_on_gpus_alone() -> None:
    given = {"x": drawn(2, 3, 16), "b": drawn(16)}
    left, right = np.split((given["x"] + given["b"]).astype(np.float64), 2, axis=-1)
    erf = np.vectorize(math.erf)(right / math.sqrt(2))
    model = one_node("BiasSplitGelu", ["x", "b"], 1, given, domain="com.microsoft")
    agree(model, given, 1e-5, [(left * right * (1 + erf) / 2).astype(np.float32)])


def test_a_sum_of_three_that_onnxruntime_has_on_gpus_alone() -> None:
    given = {"x": drawn(2, 3, 16), "b": drawn(16), "skip": drawn(2, 3, 16)}
    model = one_node("BiasAdd", [*given], 1, given, domain="com.microsoft")
    agree(model, given, 1e-6, [given["x"] + given["b"] + given["skip"]])


def test_a_quick_gelu_has_a_factor() -> None:
    checked("QuickGelu", drawn(4, 9), alpha=0.7)


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((4, 5), (5, 6), {"alpha": 0.25}),
        ((5, 4), (5, 6), {"transA": 1}),
        ((2, 3, 4, 5), (2, 3, 6, 5), {"transB": 1, "alpha": 2.0}),
        ((4, 2, 5), (2, 5, 6), {"transBatchA": 1}),
        ((2, 4, 5), (5, 2, 6), {"transBatchB": 1}),
        ((5, 2, 4), (2, 6, 5), {"transA": 1, "transB": 1, "transBatchA": 1}),
        ((5, 2, 3, 4), (6, 2, 3, 5),
         {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1}),
    ],
)  # fmt: skip
def test_products(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, object]) -> None:
    checked("FusedMatMul", drawn(*a), drawn(*b), **attributes)


def test_products_by_the_name_that_they_had() -> None:
    checked("TransposeMatMul", drawn(5, 4), drawn(6, 5), transA=1, transB=1, alpha=0.5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.2},
        {"activation": "Tanh", "alpha": 0.5, "beta": 2.0},
        {"activation": "Sigmoid", "transB": 0},
    ],
)
def test_products_with_an_activation(attributes: dict[str, object]) -> None:
    checked("FusedGemm", drawn(4, 5), drawn(5, 6), drawn(6), **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
        {"activation": "LeakyRelu", "activation_params": [0.2], "strides": [2, 2]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
    ],
)
def test_convolutions_with_an_activation(attributes: dict[str, object]) -> None:
    checked("FusedConv", drawn(1, 3, 8, 8), drawn(4, 3, 3, 3), drawn(4), **attributes)


def test_a_convolution_with_a_sum() -> None:
    x, w = drawn(1, 3, 8, 8), drawn(4, 3, 1, 1)
    checked("FusedConv", x, w, drawn(4), drawn(1, 4, 8, 8), activation="Relu")


def test_an_unknown_activation_is_refused() -> None:
    given = {"a": drawn(4, 5), "b": drawn(5, 6)}
    model = one_node("FusedGemm", ["a", "b"], 1, given, domain="com.microsoft", activation="Mish")
    with pytest.raises(ModelError, match=r"'FusedGemm'.*'com.microsoft'.*'the_node'.*'Mish'"):
        rewrite(model)


@pytest.mark.parametrize("signs", [{"detect_negative": 0}, {"detect_positive": 0}])
def test_infinity_of_one_sign(signs: dict[str, int]) -> None:
    given = {"x": np.array([1, np.inf, -np.inf, np.nan], np.float32)}
    agree(one_node("IsInf", ["x"], 1, given, opset=20, dtypes=[np.bool_], **signs), given)


def test_infinity_of_no_sign_or_both() -> None:
    given = {"x": np.array([1, np.inf, -np.inf, np.nan], np.float32)}
    more = {"detect_negative": 0, "detect_positive": 0}
    agree(one_node("IsInf", ["x"], 1, given, opset=20, dtypes=[np.bool_], **more), given)
    model = one_node("IsInf", ["x"], 1, given, opset=20, dtypes=[np.bool_])
    rewrite(model)
    assert [n.op_type for n in model.graph.node] == ["IsInf"]


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [None, 1])
def test_whether_any_or_all_hold(
    kind: str, keepdims: int, axis: int | None, tmp_path: Path
) -> None:
    """TVM has no least bool to begin a maximum with."""
    x = np.array([[False] * 3, [True] * 3, [True, False, True]])
    given = {"x": x} | ({"axes": np.array([axis])} if axis is not None else {})
    model = one_node(kind, [*given], 1, given, opset=20, dtypes=[np.bool_], keepdims=keepdims)
    for name in {*given} - {"x"}:  # axes are known before the model runs
        model.graph.initializer.append(numpy_helper.from_array(given[name], name))
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
    loaded = load(model.SerializeToString(), {})
    (found,) = computed(loaded.module, [x], tmp_path)
    wanted = (np.max if kind == "ReduceMax" else np.min)(x, axis=axis, keepdims=bool(keepdims))
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, wanted)


NARROW_CASES = {
    **dict.fromkeys(("Elu", "Selu", "Celu", "ThresholdedRelu", "Atan", "Sinh"), np.float16),
    **dict.fromkeys(("Cosh", "Asinh", "Acosh", "Atanh"), np.float16),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), np.float16),
    **dict.fromkeys(("ReduceSumSquare", "LRN", "LpPool"), np.float16),
    **dict.fromkeys(("MeanVarianceNormalization", "GridSample", "RoiAlign"), np.float16),
    "Hardmax": ml_dtypes.bfloat16,
    **dict.fromkeys(("IsInf", "IsNaN", "Pow", "Mod", "LayerNormalization"), ml_dtypes.bfloat16),
}


IMAGES: dict[str, dict[str, object]] = {
    "LRN": {"size": 3},
    "LpPool": {"kernel_shape": [3, 3]},
    "MeanVarianceNormalization": {},
    "GridSample": {"mode": "cubic"},
    "RoiAlign": {"output_height": 2, "output_width": 3},
}
OTHERS: dict[str, dict[str, np.ndarray]] = {
    **{kind: {"y": np.full(8, 2.0)} for kind in ("Pow", "Mod", "LayerNormalization")},
    "GridSample": {"y": RANDOM.uniform(-1.2, 1.2, (1, 3, 5, 2))},
    "RoiAlign": {"y": np.array([[0.0, 0.0, 5.0, 7.0], [1.0, 1.0, 3.0, 4.0]])},
}
"""The inputs besides the first one."""


@pytest.mark.parametrize("kind", NARROW_CASES)
def test_what_tvm_lacks_for_narrow_floats_is_computed_of_wide_ones(
    kind: str, tmp_path: Path
) -> None:
    """onnxruntime has few of them on a CPU; it computes the same operator of float32."""
    dtype = np.dtype(NARROW_CASES[kind])
    low, high = (1, 2) if kind in ("Acosh", "ReduceLogSum") else (-0.9, 0.9)
    shape = (1, 4, 8, 6) if kind in IMAGES else (4, 8)
    given = {"x": RANDOM.uniform(low, high, shape)}
    given |= OTHERS.get(kind, {})
    constants = {"of": np.array([0, 0])} if kind == "RoiAlign" else {}
    more = {"fmod": 1} if kind == "Mod" else {}
    more |= {"alpha": 0.3} if kind == "ThresholdedRelu" else {}
    more |= IMAGES.get(kind, {})
    opset = 21 if kind == "RoiAlign" else 22  # onnxruntime 1.31 has no newer one
    kinds = [np.bool_] if kind.startswith("Is") else []
    models = []
    for t in (dtype, np.dtype(np.float32)):
        arrays = {n: a.astype(dtype).astype(t) for n, a in given.items()}
        names = [*arrays, *constants]
        models.append(
            one_node(kind, names, 1, arrays, constants, opset=opset, dtypes=kinds, **more)
        )
    narrow, wide = models
    rewritten = {n.op_type for n in replaced(narrow).graph.node}
    assert {"Cast"} <= rewritten
    loaded = load(narrow.SerializeToString(), {})
    (found,) = computed(loaded.module, [a.astype(dtype) for a in given.values()], tmp_path)
    (expected,) = run(wide, {n: a.astype(dtype).astype(np.float32) for n, a in given.items()})
    assert found.dtype == (dtype if not kinds else np.bool_)
    error = 1e-2 if dtype == ml_dtypes.bfloat16 else 2e-3
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=error, atol=error)


def test_a_dropout_with_its_mask() -> None:
    given = {"x": drawn(4, 5)}
    model = one_node("Dropout", ["x"], 2, given, dtypes=[np.float32, np.bool_])
    agree(model, given)
    given["training"] = np.array(True)
    model = one_node("Dropout", ["x", "", "training"], 2, given, dtypes=[np.float32, np.bool_])
    with pytest.raises(ModelError, match=r"'Dropout'.*'the_node'.*'training_mode'"):
        rewrite(model)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [("float32", "int64"), ("float32", "int32"), ("float16", "float32"), ("int32", "float32"),
     ("int64", "float64"), ("int64", "int32"), ("float64", "float32")],
)  # fmt: skip
def test_a_power_has_the_type_of_its_base(base: str, exponent: str) -> None:
    given = {"x": np.array([1, 2, 3, 7], base), "n": np.array([3, 0, 2, 4], exponent)}
    model = one_node("Pow", ["x", "n"], 1, given)
    agree(model, given, 1e-3 if base == "float16" else 1e-6)
    load(model.SerializeToString(), {})


@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_a_celu_is_written_out(alpha: float) -> None:
    given = {"x": drawn(4, 9)}
    made = agree(one_node("Celu", ["x"], 1, given, alpha=alpha), given)
    assert "Celu" not in {n.op_type for n in made.graph.node}
