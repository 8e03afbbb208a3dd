"""onnxruntime's Attention and MultiHeadAttention become chains of two products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node, run

ORT = "com.microsoft"
RANDOM = np.random.default_rng(0)
BATCH, HEADS, DEPTH = 2, 3, 8
WIDTH = HEADS * DEPTH
ONES = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def checked(
    model: onnx.ModelProto, given: Mapping[str, np.ndarray], products: int, chained: bool = True
) -> None:
    """The rewritten node agrees, and its last two products are one chain."""
    agree(model, given, 2e-5)
    found = partition(load(model.SerializeToString(), {}).module, 1e12, 1e10).products
    assert len(found) == products
    assert (found[-1].chain == found[-2].chain) is chained


def packed(
    given: Mapping[str, np.ndarray], outputs: int = 1, sizes: tuple[int, ...] = (), **more: object
) -> onnx.ModelProto:
    slots = ("x", "w", "b", "mask", "past", "bias")
    weights = {"w": drawn(16, sum(sizes) or 3 * WIDTH), "b": drawn(sum(sizes) or 3 * WIDTH)}
    names = [n if n in given or n in weights else "" for n in slots]
    if sizes:
        more["qkv_hidden_sizes"] = sizes
    while not names[-1]:
        names.pop()
    return one_node("Attention", names, outputs, given, weights, ORT, num_heads=HEADS, **more)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "mask",
    [
        None, ONES, np.array([4, 6], np.int32), np.array([4, 6, 1, 0], np.int32),
        np.tril(np.ones((BATCH, 6, 6), np.int32)),
    ],
)  # fmt: skip
def test_packed(causal: int, mask: np.ndarray | None) -> None:
    given = {"x": drawn(BATCH, 6, 16)} | ({} if mask is None else {"mask": mask})
    checked(packed(given, unidirectional=causal), given, 3)


def test_packed_with_a_bias_of_scores_and_a_scale() -> None:
    given = {"x": drawn(BATCH, 6, 16), "bias": drawn(BATCH, HEADS, 6, 6)}
    checked(packed(given, scale=0.3, mask_filter_value=-1e4), given, 3)


def test_packed_with_values_of_another_width() -> None:
    given = {"x": drawn(BATCH, 6, 16)}
    checked(packed(given, sizes=(WIDTH, WIDTH, 2 * WIDTH)), given, 3)


@pytest.mark.parametrize("causal", [0, 1])
def test_packed_with_a_cache(causal: int) -> None:
    given = {"x": drawn(BATCH, 2, 16), "past": drawn(2, BATCH, HEADS, 4, DEPTH), "mask": ONES}
    checked(packed(given, 2, unidirectional=causal), given, 3)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("given", [{}, {"mask": ONES}, {"past": None}])
def test_quantized(given: dict[str, np.ndarray | None], columns: bool) -> None:
    """As onnxruntime quantizes what its optimizer has fused."""
    weights = {
        "w": RANDOM.integers(-90, 90, (16, 3 * WIDTH)).astype(np.int8), "b": drawn(3 * WIDTH),
        "scale": np.float32(0.02),
        "scales": RANDOM.uniform(0.01, 0.02, 3 * WIDTH if columns else ()).astype(np.float32),
        "zero": np.uint8(7), "zeros": np.int8(0),
    }  # fmt: skip
    x = RANDOM.integers(0, 100, (BATCH, 6, 16)).astype(np.uint8)
    inputs = {"x": x} | {n: v for n, v in given.items() if v is not None}
    if "past" in given:
        inputs["past"] = drawn(2, BATCH, HEADS, 4, DEPTH)
    mask, past = (n if n in inputs else "" for n in ("mask", "past"))
    slots = ["x", "w", "b", "scale", "scales", mask, "zero", "zeros", past]
    model = one_node(
        "QAttention", slots if past else slots[:-1], 1 + bool(past), inputs, weights, ORT,
        dtypes=[np.float32] * (1 + bool(past)), num_heads=HEADS, unidirectional=int(bool(past)),
    )  # fmt: skip
    agree(model, inputs, 1e-4)
    load(model.SerializeToString(), {})


def apart(
    given: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray] | None = None,
    outputs: int = 1, **more: object,
) -> onnx.ModelProto:  # fmt: skip
    slots = ("q", "k", "v", "b", "mask", "bias", "past_key", "past_value")
    names = [n if n in given or n in (constants or {}) else "" for n in slots]
    while not names[-1]:
        names.pop()
    return one_node(
        "MultiHeadAttention", names, outputs, given, constants, ORT, num_heads=HEADS, **more
    )


def three(rows: int = 6, columns: int = 6) -> dict[str, np.ndarray]:
    return {"q": drawn(BATCH, rows, WIDTH)} | {n: drawn(BATCH, columns, WIDTH) for n in "kv"}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_apart(biased: bool, causal: int) -> None:
    weights = {"b": drawn(3 * WIDTH)} if biased else {}
    given = three()
    checked(apart(given, weights, unidirectional=causal), given, 2)


def test_of_other_positions() -> None:
    given = three(4, 6)
    given["v"] = drawn(BATCH, 6, 2 * WIDTH)
    checked(apart(given, {"b": drawn(4 * WIDTH)}, scale=0.2), given, 2)


@pytest.mark.parametrize(
    "mask", [ONES, np.array([4, 6], np.int32), ONES[:, None] * ONES[:, :, None]]
)
def test_masks(mask: np.ndarray) -> None:
    given = three() | {"mask": mask}
    checked(apart(given, mask_filter_value=-5e3), given, 2)
    checked(apart(three(), {"mask": mask}), three(), 2)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, 6, 6), (1, HEADS, 6, 6), (1, 1, 6, 6)])
def test_biases_of_scores(shape: tuple[int, ...]) -> None:
    given = three() | {"bias": drawn(*shape), "mask": ONES}
    checked(apart(given), given, 2)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_cache(causal: int) -> None:
    given = three(2, 2)
    given |= {n: drawn(BATCH, HEADS, 4, DEPTH) for n in ("past_key", "past_value")}
    checked(apart(given, outputs=3, unidirectional=causal), given, 2)


def test_keys_and_values_of_another_model() -> None:
    given = {"q": drawn(BATCH, 4, WIDTH)} | {n: drawn(BATCH, HEADS, 6, DEPTH) for n in "kv"}
    checked(apart(given), given, 2)


def test_packed_inputs() -> None:
    """onnxruntime has these forms on GPUs alone."""
    whole = drawn(BATCH, 6, HEADS, 3, DEPTH)
    q, k, v = (whole[..., i, :].reshape(BATCH, 6, WIDTH) for i in range(3))
    same = apart({"q": q, "k": k, "v": v})
    expected = run(same, {"q": q, "k": k, "v": v})
    agree(apart({"q": whole}), {"q": whole}, 2e-5, expected)
    given = {"q": q, "k": np.ascontiguousarray(whole[..., 1:, :])}
    agree(apart(given), given, 2e-5, expected)


def test_half_precision() -> None:
    given = {n: a.astype(np.float16) for n, a in three().items()}
    wide = {n: a.astype(np.float32) for n, a in given.items()}
    expected = [a.astype(np.float16) for a in run(apart(wide), wide)]
    agree(apart(given), given, 5e-3, expected)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (apart(three(), outputs=4), "output of scores"),
        (packed({"x": drawn(2, 6, 16)}, do_rotary=1), "do_rotary"),
        (packed({"x": drawn(2, 6, 16)}, past_present_share_buffer=1), "one buffer"),
        (packed({"x": drawn(2, 6, 16), "mask": np.zeros(8, np.int32)}), r"shape \(8,\)"),
    ],
)
def test_what_is_refused(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=rf"Attention'.*'com.microsoft'.*'the_node'.*{words}"):
        rewrite(model)
