"""onnxruntime's GroupQueryAttention becomes one chain of two products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node, replaced, run

RANDOM = np.random.default_rng(0)
BATCH, HEADS, SHARED, DEPTH = 2, 4, 2, 16
SLOTS = ("q", "k", "v", "past_key", "past_value", "last", "total", "cos", "sin", "where", "bias",
         "sink", "k_scale", "v_scale", "q_norm", "k_norm", "fresh_rows")  # fmt: skip


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def arrays(rows: int, past: int, last: list[int] | None = None, dtype: type = np.float32) -> tuple[
    dict[str, np.ndarray], dict[str, np.ndarray]
]:  # fmt: skip
    """Inputs and constants; `last` are the last positions of the sequences, if they are inputs.

    onnxruntime wants one sequence where several positions come after others.
    """
    batch = 1 if rows > 1 and past else BATCH
    given = {"q": drawn(batch, rows, HEADS * DEPTH, dtype=dtype)}
    given |= {n: drawn(batch, rows, SHARED * DEPTH, dtype=dtype) for n in "kv"}
    if past:
        shape = (batch, SHARED, past, DEPTH)
        given |= {n: drawn(*shape, dtype=dtype) for n in ("past_key", "past_value")}
    constants = {"total": np.array(past + rows, np.int32)}
    where = np.array(last or [past + rows - 1] * batch, np.int32)
    (given if last else constants)["last"] = where
    return given, constants


def node(
    given: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray], **more: object
) -> onnx.ModelProto:
    names = [n if n in given or n in constants else "" for n in SLOTS]
    while not names[-1]:
        names.pop()
    return one_node(
        "GroupQueryAttention", names, 3, given, constants, "com.microsoft",
        num_heads=HEADS, kv_num_heads=SHARED, **more,
    )  # fmt: skip


def checked(
    given: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray], tolerance: float = 2e-5,
    **more: object,
) -> None:  # fmt: skip
    model = node(given, constants, **more)
    agree(model, given, tolerance)
    found = partition(load(model.SerializeToString(), {}).module, 1e12, 1e10)
    assert [p.chain for p in found.products] == [0, 0]


def tables(dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {n: drawn(32, DEPTH // 2, dtype=dtype) for n in ("cos", "sin")}


@pytest.mark.parametrize("more", [{}, {"scale": 0.3}, {"softcap": 2.0}, {"local_window_size": 3}])
@pytest.mark.parametrize(("rows", "past"), [(7, 0), (1, 6), (3, 5)])
def test_causal_with_a_cache(rows: int, past: int, more: dict[str, object]) -> None:
    checked(*arrays(rows, past), **more)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("rows", "past"), [(7, 0), (1, 6), (3, 5)])
def test_rotary(rows: int, past: int, interleaved: int, dtype: type) -> None:
    given, constants = arrays(rows, past, dtype=dtype)
    constants |= tables(dtype)
    tolerance = 2e-5 if dtype is np.float32 else 1e-2
    checked(given, constants, tolerance, do_rotary=1, rotary_interleaved=interleaved)


def test_an_empty_cache_before_the_first_positions() -> None:
    given, constants = arrays(7, 0)
    empty = {n: drawn(BATCH, SHARED, 0, DEPTH) for n in ("past_key", "past_value")}
    model = node(given | empty, constants | tables(), do_rotary=1)
    agree(model, given | empty)
    for value in model.graph.input:
        if value.name in empty:
            value.type.tensor_type.shape.dim[2].dim_param = "past"
    module = load(model.SerializeToString(), {"past": (0,)}).module
    assert [p.chain for p in partition(module, 1e12, 1e10).products] == [0, 0]


def test_packed() -> None:
    given, constants = arrays(7, 0)
    whole = np.concatenate([given[n] for n in "qkv"], 2)
    checked({"q": whole}, constants | tables(), do_rotary=1)


def test_a_bias() -> None:
    given, constants = arrays(3, 5)
    checked(given | {"bias": drawn(1, HEADS, 3, 8)}, constants)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("rotary", [0, 1])
def test_sequences_of_several_lengths(rows: int, rotary: int) -> None:
    """What lies behind a sequence in the cache is nobody's business."""
    last = [rows + 3, rows + 5] if rows == 1 else [rows + 2]
    given, constants = arrays(rows, 6, last)
    model = node(given, constants | (tables() if rotary else {}), do_rotary=rotary)
    (a, *one), (b, *other) = run(replaced(model), given), run(model, given)
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    for x, y in zip(one, other, strict=True):
        assert x.shape == y.shape
        for i, end in enumerate(last):
            np.testing.assert_allclose(x[i, :, : end + 1], y[i, :, : end + 1], atol=2e-5)


def test_an_unknown_length_of_the_whole_is_refused() -> None:
    given, constants = arrays(3, 5)
    given["total"] = constants.pop("total")
    with pytest.raises(ModelError, match=r"'GroupQueryAttention'.*total_sequence_length"):
        rewrite(node(given, constants))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("rows", "past"), [(7, 0), (1, 6), (3, 5)])
def test_a_sink_for_each_head(rows: int, past: int, dtype: type) -> None:
    given, constants = arrays(rows, past, dtype=dtype)
    constants["sink"] = np.array([0, 2, -30, 60], dtype)
    checked(given, constants, 2e-5 if dtype is np.float32 else 1e-2)


def test_a_smooth_softmax_has_a_sink_of_zero() -> None:
    checked(*arrays(3, 5), smooth_softmax=1)


@pytest.mark.parametrize(("rows", "past"), [(7, 0), (1, 6), (3, 5)])
def test_rows_that_see_what_comes_after_them(rows: int, past: int) -> None:
    checked(*arrays(rows, past), causal=0)


def test_rows_of_several_lengths_see_no_column_that_holds_nothing() -> None:
    last = [3, 5]
    given, constants = arrays(1, 6, last)
    model = node(given, constants, causal=0)
    np.testing.assert_allclose(
        run(replaced(model), given)[0], run(model, given)[0], rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("window", [4, 6])
@pytest.mark.parametrize(
    ("rows", "last"), [(1, [0, 3]), (1, [4, 5]), (1, [6, 7]), (1, [11, 18]), (3, [9]), (9, [8]),
                       (9, [20]), (3, [4])],
)  # fmt: skip
def test_a_cache_of_a_window(rows: int, last: list[int], window: int, rotary: int) -> None:
    """A cache of six rows: the new one begins with the oldest position that it has."""
    given, constants = arrays(rows, 6, last)
    constants |= {"total": np.array(max(last) + 1, np.int32)} | (tables() if rotary else {})
    more = {"sliding_window_cache": 1, "local_window_size": window, "do_rotary": rotary}
    model = node(given, constants, **more)
    (a, *one), (b, *other) = run(replaced(model), given), run(model, given)
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    for x, y in zip(one, other, strict=True):
        assert x.shape == y.shape
        for i, end in enumerate(last):
            spare = 6 - window + 1
            held = end + 1 - spare * max(0, -((5 - end) // spare))
            np.testing.assert_allclose(x[i, :, :held], y[i, :, :held], atol=2e-5)


def test_heads_divided_by_their_root_mean_square() -> None:
    """onnxruntime has these inputs on GPUs alone; they are norms before the rotation."""
    given, constants = arrays(3, 5)
    constants |= tables() | {"q_norm": drawn(DEPTH), "k_norm": drawn(DEPTH)}
    model = node(given, constants, do_rotary=1, qk_norm_epsilon=0.1, k_norm_epsilon=0.3)

    def normalized(x: np.ndarray, weights: np.ndarray, small: float) -> np.ndarray:
        heads = x.reshape(*x.shape[:2], -1, DEPTH)
        square = np.mean(heads * heads, 3, keepdims=True)
        return (heads / np.sqrt(square + small) * weights).reshape(x.shape).astype(np.float32)

    before = given | {"q": normalized(given["q"], constants["q_norm"], 0.1),
                      "k": normalized(given["k"], constants["k_norm"], 0.3)}  # fmt: skip
    plain = {n: x for n, x in constants.items() if n not in ("q_norm", "k_norm")}
    expected = run(node(before, plain, do_rotary=1), before)
    for a, b in zip(run(replaced(model), given), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("slot", "words"), [("k_scale", "'k_scale'"), ("fresh_rows", "'query_seqlens'")]
)
def test_what_is_refused(slot: str, words: str) -> None:
    given, constants = arrays(3, 5)
    model = node(given, constants | {slot: drawn(1)})
    with pytest.raises(ModelError, match=rf"'GroupQueryAttention'.*'the_node'.*{words}"):
        rewrite(model)


@pytest.mark.parametrize(
    ("more", "slot", "words"),
    [({"local_window_size": 8}, "", "has 5 rows, and its window 8"), ({}, "", "its window -1"),
     ({"local_window_size": 4}, "bias", "attention_bias")],
)  # fmt: skip
def test_a_window_that_is_refused(more: dict[str, object], slot: str, words: str) -> None:
    given, constants = arrays(3, 5)
    constants |= {slot: drawn(1, HEADS, 3, 8)} if slot else {}
    model = node(given, constants, sliding_window_cache=1, **more)
    with pytest.raises(ModelError, match=rf"'GroupQueryAttention'.*{words}"):
        rewrite(model)
