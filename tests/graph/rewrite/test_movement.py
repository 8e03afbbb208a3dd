"""Elements that move to places that are known only as the model runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.lifted import computed
from tests.support.nets import Net
from tests.support.one_node import Arrays, agree, one_node

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("shape", "axis"), [((2, 4, 7, 3), -2), ((2, 7, 3), 1), ((2, 3, 7), 2)])
def test_a_cache_is_written(shape: tuple[int, ...], axis: int, rows: int, mode: str) -> None:
    update = list(shape)
    update[axis] = rows
    given = {"cache": drawn(*shape), "new": drawn(*update)}
    for start in (None, [2, 4] if mode == "linear" else [5, 6]):
        arrays = given | ({} if start is None else {"start": np.array(start, np.int64)})
        model = one_node("TensorScatter", list(arrays), 1, arrays, opset=24, mode=mode, axis=axis)
        agree(model, arrays, results=ReferenceEvaluator(model).run(None, arrays))
        load(model.SerializeToString(), {})


def test_parts_without_elements_are_left_out(tmp_path: Path) -> None:
    """As a cache before the first step."""

    def joined(*names: str, **arrays: np.ndarray) -> bytes:
        model = one_node("Concat", names, 1, arrays, axis=1)
        (past,) = (i for i in model.graph.input if i.name == "past")
        past.type.tensor_type.shape.dim[1].dim_param = "steps"
        return bytes(model.SerializeToString())

    empty, shapes = drawn(2, 0, 3), {"past": (2, 0, 3)}
    for parts in ({"a": drawn(2, 4, 3)}, {"a": drawn(2, 4, 3), "b": drawn(2, 1, 3)}):
        for arrays in ({"past": empty} | parts, parts | {"past": empty}):
            found = load(joined(*arrays, **arrays), shapes)
            assert [p.shape for p in found.inputs] == [a.shape for a in arrays.values()]
            (result,) = computed(found.module, [*arrays.values()], tmp_path)
            np.testing.assert_array_equal(result, np.concatenate([*parts.values()], 1))
    with pytest.raises(ModelError, match=r"input 'past' has a dimension of extent 0.*'Concat'"):
        load(joined("past", "past", past=empty), shapes)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("inner", [(), (3,)])
def test_sequences_are_reversed(time: int, batch: int, inner: tuple[int, ...], known: bool) -> None:
    given = {"x": drawn(*((5, 4) if time == 0 else (4, 5)), *inner)}
    lengths = {"lengths": np.array([5, 1, 3, 2], np.int64)}
    arrays: Arrays = given if known else given | lengths
    model = one_node(
        "ReverseSequence", ["x", "lengths"], 1, arrays, lengths if known else {},
        time_axis=time, batch_axis=batch,
    )  # fmt: skip
    agree(model, arrays)
    load(model.SerializeToString(), {})


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_of_many(axis: int) -> None:
    given = {"i": np.array([[0, 3, -1], [4, -5, 2]])}
    constants = {"depth": np.int64(5), "values": np.array([-1.0, 2.0], np.float32)}
    model = one_node(
        "OneHot", [*given, *constants], 1, given, constants, dtypes=[np.float32], axis=axis
    )
    agree(model, given)
    load(model.SerializeToString(), {})


def test_an_unknown_depth_is_refused() -> None:
    given = {"i": np.array([0, 3]), "depth": np.array(5)}
    constants = {"values": np.array([-1.0, 2.0], np.float32)}
    model = one_node("OneHot", [*given, *constants], 1, given, constants)
    with pytest.raises(ModelError, match=r"'OneHot'.*'the_node'.*'depth' is not known"):
        rewrite(model)


@pytest.mark.parametrize("more", [{}, {"dtype": 7}, {"k": 2, "dtype": 11}, {"k": -1}])
def test_a_unit_matrix_is_a_constant(more: dict[str, int]) -> None:
    given = {"x": drawn(3, 5)}
    dtypes = [{7: np.int64, 11: np.float64}.get(more.get("dtype", 1), np.float32)]
    model = one_node("EyeLike", ["x"], 1, given, dtypes=dtypes, **more)
    assert not [n.op_type for n in agree(model, given).graph.node if n.op_type != "Identity"]
    load(model.SerializeToString(), {})


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_whole_rows_are_put_where_they_go(reduction: str) -> None:
    """From the end, too."""
    for inner in ((4,), (2, 3)):
        net = Net(opset=18)
        at = net.const(np.array([3, 0, -2]).reshape(3, *[1] * len(inner)), np.int64)
        x, rows = net.input("x", 5, *inner), net.input("rows", 3, *inner)
        everywhere = net.op("Expand", at, net.op("Shape", rows))
        model = net.model(net.op("ScatterElements", x, everywhere, rows, reduction=reduction))
        made = agree(model, {"x": drawn(5, *inner), "rows": drawn(3, *inner)})
        assert "ScatterND" in [n.op_type for n in made.graph.node]


@pytest.mark.parametrize(
    ("x", "at", "rows", "axis"),
    [
        ((5, 4), (3, 1), (3, 4), 1),  # along another dimension
        ((5, 4), (1, 4), (3, 4), 0),  # a position for each column
        ((5, 6), (3, 1), (3, 4), 0),  # parts of rows
        ((5,), (1,), (3,), 0),  # elements
    ],
)
def test_other_elements_are_put_one_by_one(
    x: tuple[int, ...], at: tuple[int, ...], rows: tuple[int, ...], axis: int
) -> None:
    net = Net(opset=18)
    places = net.const(np.arange(np.prod(at)).reshape(at), np.int64)
    inputs = net.input("x", *x), net.input("rows", *rows)
    everywhere = net.op("Expand", places, net.op("Shape", inputs[1]))
    model = net.model(net.op("ScatterElements", inputs[0], everywhere, inputs[1], axis=axis))
    rewrite(model)
    assert "ScatterElements" in [n.op_type for n in model.graph.node]


RELAYED = {
    "Trilu": ({"x": np.arange(20, dtype=np.float32).reshape(4, 5)}, {"k": np.asarray(1, np.int64)}),
    "GatherND": (
        {"x": np.arange(12, dtype=np.float32).reshape(3, 4)},
        {"i": np.array([[0, 1], [2, 3]], np.int64)},
    ),
    "Pad": (
        {"x": np.ones((2, 3), np.float32)},
        {"p": np.array([1, 0, 0, 2], np.int64), "v": np.asarray([7], np.float32)},
    ),
    "GridSample": (
        {"x": np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4),
         "g": np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)}, {},
    ),
    "ExpandDims": (
        {"x": np.ones((2, 3), np.float32)}, {"a": np.asarray(-1, np.int32)},
    ),
    "Range": (
        {}, {"a": np.asarray(2, np.float32), "b": np.asarray(9, np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("kind", RELAYED)
def test_what_onnxruntime_has_twice(kind: str, opset: int) -> None:
    given, weights = RELAYED[kind]
    more = {"mode": "bilinear"} if kind == "GridSample" else {}
    model = one_node(
        kind, [*given, *weights], 1, given, weights, "com.microsoft", opset, [np.float32], **more
    )
    agree(model, given)


def test_an_opset_may_lack_what_onnxruntime_has() -> None:
    given = {"x": np.ones((4, 5), np.float32)}
    model = one_node("Trilu", ["x"], 1, given, domain="com.microsoft", opset=13)
    with pytest.raises(ModelError, match=r"'Trilu' of domain 'com.microsoft'.*opset 13"):
        rewrite(model)
