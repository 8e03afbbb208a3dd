"""Rotary embeddings of ONNX and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.one_node import agree, one_node

RANDOM = np.random.default_rng(0)
TOLERANCE = {np.float32: 1e-5, np.float16: 4e-3}
HEADS, DEPTH = 3, 8


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def values(apart: bool, dtype: type) -> np.ndarray:
    return drawn(*((2, HEADS, 5, DEPTH) if apart else (2, 5, HEADS * DEPTH)), dtype=dtype)


def tables(dtype: type, width: int = DEPTH) -> dict[str, np.ndarray]:
    return {n: drawn(12, width // 2, dtype=dtype) for n in ("cosine", "sine")}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
def test_onnxs(apart: bool, interleaved: int, part: int, dtype: type) -> None:
    given = {"x": values(apart, dtype), "where": RANDOM.integers(0, 12, (2, 5))}
    more = {"interleaved": interleaved, "num_heads": 0 if apart else HEADS}
    more |= {"rotary_embedding_dim": part} if part else {}
    looked = tables(dtype, part or DEPTH)
    model = one_node(
        "RotaryEmbedding", ["x", "cosine", "sine", "where"], 1, given, looked, opset=23, **more
    )
    expected = ReferenceEvaluator(model).run(None, given)
    agree(model, given, TOLERANCE[dtype], expected)
    angles = {n: t[given["where"]] for n, t in looked.items()}
    given = {"x": given["x"], **angles}
    model = one_node("RotaryEmbedding", ["x", "cosine", "sine"], 1, given, opset=23, **more)
    agree(model, given, TOLERANCE[dtype], expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("first", [False, True])
def test_onnxruntimes(apart: bool, interleaved: int, first: bool, dtype: type) -> None:
    where = np.array([3]) if first else RANDOM.integers(0, 12, (2, 5))
    given = {"x": values(apart, dtype), "where": where}
    model = one_node(
        "RotaryEmbedding", ["x", "where", "cosine", "sine"], 1, given, tables(dtype),
        "com.microsoft", interleaved=interleaved,
    )  # fmt: skip
    agree(model, given, TOLERANCE[dtype])


def test_a_part_of_onnxruntimes_heads() -> None:
    given = {"x": values(False, np.float32), "where": RANDOM.integers(0, 12, (2, 5))}
    model = one_node(
        "RotaryEmbedding", ["x", "where", "cosine", "sine"], 1, given, tables(np.float32, 4),
        "com.microsoft", num_heads=HEADS, rotary_embedding_dim=4,
    )  # fmt: skip
    agree(model, given)
