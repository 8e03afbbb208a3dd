"""onnxruntime's operators for pictures with their channels last, which it has on GPUs alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mcfuser.graph.load import load
from tests.support.one_node import agree, one_node, run

ORT = "com.microsoft"
RANDOM = np.random.default_rng(0)
BATCH, PLACES, CHANNELS, GROUPS = 2, (6, 5), 8, 4


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def convolved(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, **more: object) -> np.ndarray:
    """A convolution of pictures with their channels last, by ONNX's operator."""
    given = {"x": np.moveaxis(x, -1, 1), "w": np.moveaxis(w, -1, 1)} | (
        {} if b is None else {"b": b}
    )
    (found,) = run(one_node("Conv", [*given], 1, given, **more), given)
    return np.moveaxis(found, 1, -1)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "more",
    [{}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}, {"group": 2}, {"auto_pad": "SAME_UPPER"}],
)
def test_convolutions(more: dict[str, object], biased: bool) -> None:
    x, w = (
        drawn(BATCH, *PLACES, CHANNELS),
        drawn(6, 3, 3, CHANNELS // int(str(more.get("group", 1)))),
    )
    b = drawn(6) if biased else None
    weights = {"w": w} | ({} if b is None else {"b": b})
    names, results = ["x", *weights], [convolved(x, w, b, **more)]
    model = one_node("NhwcConv", names, 1, {"x": x}, weights, ORT, channels_last=1, **more)
    agree(model, {"x": x}, 1e-5, results)
    load(model.SerializeToString(), {})


def normed(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, small: float) -> np.ndarray:
    """A group norm of a picture with its channels last, in float64."""
    apart = x.astype(np.float64).reshape(len(x), -1, GROUPS, CHANNELS // GROUPS)
    mean, variance = (f(apart, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    return ((apart - mean) / np.sqrt(variance + small)).reshape(x.shape) * scale + shift


def activated(y: np.ndarray, silu: int) -> np.ndarray:
    return y / (1 + np.exp(-y)) if silu else y


def norm(
    kind: str, given: dict[str, np.ndarray], weights: dict[str, np.ndarray], outputs: int = 1,
    **more: object,
) -> onnx.ModelProto:  # fmt: skip
    names = ["x", "scale", "shift", *(n for n in ("skip", "bias") if n in given | weights)]
    return one_node(kind, names, outputs, given, weights, ORT, groups=GROUPS, **more)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_group_norms(last: int, silu: int, dtype: type) -> None:
    """Their scales and shifts are float32 beside pictures in float16."""
    x = drawn(BATCH, *PLACES, CHANNELS, dtype=dtype)
    weights = {"scale": drawn(CHANNELS), "shift": drawn(CHANNELS)}
    y = activated(normed(x, weights["scale"], weights["shift"], 1e-3), silu).astype(dtype)
    if not last:
        x, y = np.moveaxis(x, -1, 1), np.moveaxis(y, -1, 1)
    model = norm("GroupNorm", {"x": x}, weights, activation=silu, epsilon=1e-3, channels_last=last)
    agree(model, {"x": x}, 1e-5 if dtype is np.float32 else 1e-2, [y])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("skipped", ["whole", "row", "flat"])
def test_group_norms_of_a_sum(skipped: str, biased: bool) -> None:
    extents = {"whole": PLACES, "row": (1, 1), "flat": ()}[skipped]
    x, skip = drawn(BATCH, *PLACES, CHANNELS), drawn(BATCH, *extents, CHANNELS)
    weights = {"scale": drawn(CHANNELS), "shift": drawn(CHANNELS)}
    weights |= {"bias": drawn(CHANNELS)} if biased else {}
    total = x + skip.reshape(BATCH, *(extents or (1, 1)), CHANNELS) + weights.get("bias", 0)
    y = activated(normed(total, weights["scale"], weights["shift"], 1e-5), 1)
    given = {"x": x, "skip": skip}
    model = norm("SkipGroupNorm", given, weights, 2, activation=1)
    agree(model, given, 1e-5, [y.astype(np.float32), total.astype(np.float32)])
    load(model.SerializeToString(), {})
