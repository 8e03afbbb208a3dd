"""Numbers of four bits: products by weights in a code, and rows of tables."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.nets import Net
from tests.support.one_node import agree, one_node

ORT = "com.microsoft"
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("depth", "columns", "block"), [(64, 5, 16), (48, 3, 32), (128, 8, 64)])
def test_weights_in_a_code(depth: int, columns: int, block: int, kind: int) -> None:
    """FP4 and NF4; blocks may go on from one column to the next."""
    count = depth * columns
    weights = {
        "w": RANDOM.integers(0, 256, -(-count // 2)).astype(np.uint8),
        "most": RANDOM.uniform(0.5, 2, -(-count // block)).astype(np.float32),
    }
    given = {"x": RANDOM.standard_normal((2, 3, depth)).astype(np.float32)}
    model = one_node(
        "MatMulBnb4", [*given, *weights], 1, given, weights, ORT,
        K=depth, N=columns, block_size=block, quant_type=kind,
    )  # fmt: skip
    agree(model, given, 1e-4)
    load(model.SerializeToString(), {})


def table(kind: str, rows: int, width: int) -> np.ndarray:
    if kind == "uint8":
        return RANDOM.integers(0, 256, (rows, width // 2)).astype(np.uint8)
    low = -8 if kind == "int4" else 0
    return RANDOM.integers(low, low + 16, (rows, width)).astype(getattr(ml_dtypes, kind))


@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("kind", ["uint8", "int4", "uint4"])
@pytest.mark.parametrize("block", [16, 32])
def test_rows_of_a_table(block: int, kind: str, shifted: bool) -> None:
    rows, width = 20, 64
    data, blocks = table(kind, rows, width), width // block
    weights = {"data": data, "scales": RANDOM.uniform(0.1, 1, (rows, blocks)).astype(np.float32)}
    if shifted:
        weights["zeros"] = table(kind, rows, blocks)
    given = {"ids": RANDOM.integers(0, rows, (2, 3)).astype(np.int64)}
    names = ["data", "ids", "scales", *(["zeros"] if shifted else [])]
    more = {"bits": 4} if kind == "uint8" else {}
    model = one_node(
        "GatherBlockQuantized", names, 1, given, weights, ORT, 21, [np.float32],
        block_size=block, gather_axis=0, quantize_axis=1, **more,
    )  # fmt: skip
    agree(model, given, 1e-5)
    load(model.SerializeToString(), {})


def test_a_table_in_float16_gives_float16() -> None:
    weights = {"data": table("uint8", 6, 32), "scales": np.ones((6, 2), np.float16)}
    given = {"ids": np.array([3, 0], np.int32)}
    model = one_node(
        "GatherBlockQuantized", ["data", "ids", "scales"], 1, given, weights, ORT, 21, [np.float16],
        block_size=16, bits=4,
    )  # fmt: skip
    agree(model, given, 1e-3)


def test_a_table_in_another_shape() -> None:
    """One that the last product of a language model has, too, as that wants it."""
    blocks = RANDOM.integers(0, 256, (20, 4, 8)).astype(np.uint8)
    net = Net(np.float32, 21)
    net.input("ids", 2, 3, dtype=np.int64)
    scales = net.const(RANDOM.uniform(0.1, 1, (20, 4)), np.float32)
    data = net.op("Reshape", net.const(blocks, np.uint8), net.ints(20, 32))
    rows = net.op("GatherBlockQuantized", data, "ids", scales, domain=ORT, block_size=16)
    agree(net.model(rows), {"ids": RANDOM.integers(0, 20, (2, 3))}, 1e-5)


def test_blocks_along_other_dimensions_are_refused() -> None:
    weights = {"data": table("uint8", 32, 8), "scales": np.ones((2, 4), np.float32)}
    given = {"ids": np.array([3, 0], np.int32)}
    model = one_node(
        "GatherBlockQuantized", ["data", "ids", "scales"], 1, given, weights, ORT, 21, [np.float32],
        block_size=16, gather_axis=1, quantize_axis=0,
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"'GatherBlockQuantized'.*along dimension 1 of 2.*last"):
        rewrite(model)


def test_weights_in_a_code_that_are_inputs_are_refused() -> None:
    given = {
        "x": np.ones((2, 32), np.float32),
        "w": np.ones(64, np.uint8),
        "most": np.ones(8, np.float32),
    }
    model = one_node("MatMulBnb4", [*given], 1, given, domain=ORT, K=32, N=4, block_size=16)
    with pytest.raises(ModelError, match=r"'MatMulBnb4'.*'w' is no constant"):
        rewrite(model)
