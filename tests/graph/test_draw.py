"""Random inputs: within what the graph allows, and no mask hides a whole row."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.weights import OnnxModel

TABLE = "float[300, 1] table = {" + ", ".join("0" * 300) + "}"
LOW = "low = Constant <value_float = -1e30> ()"


def drawn(given: str, body: str, weights: str = TABLE) -> Feeds:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g ({given}) => (float y) <{weights}> {{ {body} }}'
    )
    return inputs(OnnxModel(model), np.random.default_rng(0))


def test_inputs_come_in_order_with_their_types_and_shapes() -> None:
    body = "a = Gather (table, ids) y = Mul (a, x)"
    feeds = drawn("int32[2, 3] ids, float16[4, 1] h, float[2, 3, 1] x, bool b", body)
    forms = [(n, a.dtype.name, a.shape) for n, a in feeds.items()]
    assert forms == [
        ("ids", "int32", (2, 3)), ("h", "float16", (4, 1)), ("x", "float32", (2, 3, 1)),
        ("b", "bool", ()),
    ]  # fmt: skip


def test_indices_fill_the_table_as_far_as_their_type_reaches() -> None:
    feeds = drawn("int64[5000] a, uint8[5000] b",
                  "p = Gather (table, a) c = Cast <to = 7> (b) y = Gather (table, c)")  # fmt: skip
    assert feeds["a"].min() == 0 and feeds["a"].max() == 299
    assert feeds["b"].min() == 0 and feeds["b"].max() == 255


@pytest.mark.parametrize("shape", ["2, 64", "2, 1, 1, 64", "2, 64, 1", "2, 2"])
def test_a_mask_shows_something_in_each_row(shape: str) -> None:
    feeds = drawn(f"bool[{shape}] keep, bool[{shape}] drop, float[{shape}] s, int64[{shape}] other",
                  f"{LOW} a = Where (keep, s, low) y = Where (drop, low, a)")  # fmt: skip
    rows = feeds["keep"].reshape(2, -1)
    assert rows[:, 0].all() and not feeds["drop"].reshape(2, -1)[:, 0].any()
    assert set(np.unique(feeds["other"])) <= {0, 1} and feeds["other"].reshape(2, -1)[:, 0].all()
    if rows.shape[1] > 2:
        assert not rows.all() and feeds["drop"].any()


def test_a_mask_of_one_element_shows_it() -> None:
    feeds = drawn("bool[1, 1] x, float[1, 1] s", f"{LOW} y = Where (x, s, low)")
    assert feeds["x"].all()


def test_lengths_positions_and_quantized_numbers() -> None:
    body = (
        "r = Constant <value = int64[4] {0, 1, 2, 3}> () b = Less (r, length) c = Cast <to = 1> (b)"
        " f = Constant <value_floats = [1.0, 0.5, 0.25, 0.125]> () p = Cast <to = 1> (position)"
        " q = Mul (p, f) s = Sin (q) k = Constant <value_float = 0.5> ()"
        " d = DequantizeLinear (byte, k) y = Add (s, c)"
    )
    feeds = drawn("int64[500, 1] length, int64[3, 4] position, int8[5000] byte", body)
    assert set(np.unique(feeds["length"])) == {1, 2, 3, 4}
    assert (feeds["position"] == [0, 1, 2, 3]).all()
    assert feeds["byte"].min() == -128 and feeds["byte"].max() == 127
