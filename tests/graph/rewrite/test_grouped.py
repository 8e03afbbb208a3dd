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
SLOTS = ("q", "k", "v", "past_key", "past_value", "last", "total", "cos", "sin", "where", "bias")


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


@pytest.mark.parametrize(
    ("more", "words"), [({"smooth_softmax": 1}, "'smooth_softmax'"), ({}, "'head_sink'")]
)
def test_a_sink_is_refused(more: dict[str, object], words: str) -> None:
    given, constants = arrays(3, 5)
    model = node(given, constants, **more)
    if not more:
        model.graph.node[0].input.extend([""] * 4 + ["q"])
    with pytest.raises(ModelError, match=rf"'GroupQueryAttention'.*'the_node'.*{words}"):
        rewrite(model)
