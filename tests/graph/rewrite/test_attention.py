"""ONNX's Attention becomes products and a softmax, which make one chain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node

SLOTS = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
TOLERANCE = {np.float32: 1e-5, np.float16: 4e-3}
RANDOM = np.random.default_rng(0)


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def node(
    given: Mapping[str, np.ndarray], opset: int = 24, presents: bool = False, **attributes: object
) -> onnx.ModelProto:
    names = [n if n in given else "" for n in SLOTS]
    while not names[-1]:
        names.pop()
    return one_node("Attention", names, 3 if presents else 1, given, opset=opset, **attributes)


def checked(
    given: Mapping[str, np.ndarray], opset: int = 24, presents: bool = False, **attributes: object
) -> None:
    """The rewritten node computes what onnx's reference does, and is one chain of two products.

    The reference takes a mask with one row to be causal in that row alone: it is given all rows.
    """
    whole = dict(given)
    if "mask" in given and given["mask"].shape[-2] == 1:
        *outer, _, columns = given["mask"].shape
        shape = (*outer, given["q"].shape[-2], columns)
        whole["mask"] = np.ascontiguousarray(np.broadcast_to(given["mask"], shape))
    expected = ReferenceEvaluator(node(whole, opset, presents, **attributes)).run(None, whole)
    model = node(given, opset, presents, **attributes)
    agree(model, given, TOLERANCE[given["q"].dtype.type], expected)
    if presents:  # keys and values are outputs: they stay in memory either way
        return
    found = partition(load(model.SerializeToString(), {}).module, 1e12, 1e10)
    assert [p.chain for p in found.products] == [0, 0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("causal", [0, 1])
def test_heads_apart(dtype: type, opset: int, causal: int) -> None:
    for heads, shared, rows, columns in ((3, 3, 16, 16), (6, 3, 16, 20), (4, 1, 1, 12)):
        shapes = {"q": (heads, rows, 8), "k": (shared, columns, 8), "v": (shared, columns, 12)}
        given = {n: drawn(2, *shape, dtype=dtype) for n, shape in shapes.items()}
        checked(given, opset, is_causal=causal)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_in_one_row(dtype: type) -> None:
    q, k, v = (drawn(2, 16, n, dtype=dtype) for n in (48, 24, 24))
    checked({"q": q, "k": k, "v": v}, q_num_heads=6, kv_num_heads=3, scale=0.2)
    mask = drawn(16, 16, dtype=dtype)
    checked({"q": q, "k": k, "v": v, "mask": mask}, q_num_heads=6, kv_num_heads=3, softcap=1.5)


@pytest.mark.parametrize("shape", [(16, 20), (3, 16, 20), (2, 1, 16, 20), (2, 3, 1, 20), (16, 14)])
@pytest.mark.parametrize("kind", [np.bool_, np.float32])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(shape: tuple[int, ...], kind: type, causal: int) -> None:
    given = {"q": drawn(2, 3, 16, 8), "k": drawn(2, 3, 20, 8), "v": drawn(2, 3, 20, 8)}
    given["mask"] = RANDOM.random(shape) < 0.7 if kind is np.bool_ else drawn(*shape)
    checked(given, is_causal=causal)


def test_a_row_without_any_column_is_zero() -> None:
    given = {"q": drawn(1, 2, 4, 8), "k": drawn(1, 2, 4, 8), "v": drawn(1, 2, 4, 8)}
    given["mask"] = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], np.bool_)
    checked(given)
    checked(given | {"mask": np.where(given["mask"], np.float32(0), -np.inf)})


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_of_keys_and_values(dtype: type, rows: int) -> None:
    new, past = (2, 3, rows, 8), (2, 3, 13, 8)
    given = {"q": drawn(2, 6, rows, 8, dtype=dtype)}
    given |= {n: drawn(*new, dtype=dtype) for n in "kv"}
    given |= {n: drawn(*past, dtype=dtype) for n in ("past_key", "past_value")}
    checked(given, presents=True, is_causal=1)
    checked(given, is_causal=1)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_of_which_a_part_is_used(causal: int, masked: bool) -> None:
    given = {"q": drawn(3, 4, 2, 8), "k": drawn(3, 2, 10, 8), "v": drawn(3, 2, 10, 8)}
    given["lengths"] = np.array([10, 4, 1], np.int64)
    if masked:
        given["mask"] = drawn(3, 1, 2, 10)
    checked(given, is_causal=causal)


@pytest.mark.parametrize("bounds", [(3, 0), (2, -1), (-1, 4), (0, 0)])
@pytest.mark.parametrize("lengths", [False, True])
def test_a_window(bounds: tuple[int, int], lengths: bool) -> None:
    given = {"q": drawn(2, 2, 6, 8), "k": drawn(2, 2, 9, 8), "v": drawn(2, 2, 9, 8)}
    if lengths:
        given["lengths"] = np.array([9, 6], np.int64)
    checked(given, 25, left_window_size=bounds[0], right_window_size=bounds[1])


def test_a_softmax_in_another_precision() -> None:
    given = {n: drawn(2, 2, 8, 8, dtype=np.float16) for n in "qkv"}
    checked(given, softmax_precision=onnx.TensorProto.FLOAT)


def test_scores_as_an_output_are_refused() -> None:
    given = {n: drawn(1, 1, 4, 4) for n in "qkv"}
    model = one_node("Attention", ["q", "k", "v"], 4, given, opset=23)
    with pytest.raises(ModelError, match=r"'Attention'.*opset 23.*'the_node'.*'qk_matmul_output'"):
        rewrite(model)
