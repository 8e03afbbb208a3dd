"""Along which extent a model's rows are computed by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from onnx import ModelProto
from tvm.runtime.vm import VirtualMachine

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.catalogue import device_named
from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.buckets import joined, load_buckets
from mcfuser.graph.dynamic.slices import sliced_extent
from mcfuser.graph.limits import DEFAULTS
from mcfuser.runtime.runner import arrays
from tests.support.dynamic_nets import dynamic, encoder, spans, whole_bucket
from tests.support.nets import Net

SHAPES: InputShapes = {"x": (spans(2, 3), 4)}


def net(write: Callable[[Net, str], str]) -> ModelProto:
    made = Net()
    return made.model(write(made, made.input("x", "batch", 4)))


def extent(model: ModelProto, shapes: InputShapes) -> str | None:
    prepared = dynamic(model, shapes)
    found = sliced_extent(prepared, whole_bucket(prepared))
    return found.name if found is not None else None


def test_the_rows_of_an_encoder_are_sentences_not_tokens() -> None:
    names = {"ids": (spans(1, 4), spans(3, 20)), "mask": (spans(1, 4), spans(3, 20))}
    assert extent(encoder(masked=True), names) == "batch"
    assert extent(encoder(), {"ids": (2, spans(3, 20))}) is None


def test_rows_of_one_product_are_computed_by_themselves() -> None:
    assert extent(net(lambda n, x: n.op("MatMul", x, n.weight(4, 3))), SHAPES) == "batch"
    moved = net(lambda n, x: n.op("Transpose", x, perm=[1, 0]))
    assert extent(moved, SHAPES) == "batch"


@pytest.mark.parametrize(
    "write",
    [
        lambda n, x: n.op("Softmax", x, axis=0),
        lambda n, x: n.op("Add", x, n.op("ReduceSum", x, n.ints(0), keepdims=1)),
        lambda n, x: n.op("Add", x, n.op("ReduceMean", x, axes=[0], keepdims=1)),
        lambda n, x: n.op("CumSum", x, n.const(0, np.int64)),
        lambda n, x: n.op("ReduceMean", x, axes=[0], keepdims=1),
        lambda n, x: n.op("Concat", x, x, axis=0),
        lambda n, x: n.op("Reshape", x, n.ints(-1)),
        lambda n, x: n.op("Slice", x, n.ints(1), n.ints(1 << 40), n.ints(0)),
        lambda n, x: n.op("Slice", x, n.ints(-1), n.ints(-(1 << 40)), n.ints(0), n.ints(-1)),
        lambda n, x: n.op("MatMul", x, n.op("Transpose", x, perm=[1, 0])),
    ],
    ids=["softmax", "sum", "mean", "cumulative", "reduced", "twice", "merged", "later", "reversed",
         "pairs"],
)  # fmt: skip
def test_rows_that_see_others_are_not_sliced(write: Callable[[Net, str], str]) -> None:
    assert extent(net(write), SHAPES) is None


def test_rows_that_are_numbered_are_not_sliced() -> None:
    def numbered(n: Net, x: str) -> str:
        rows = n.op("Gather", n.op("Shape", x), n.const(0, np.int64), axis=0)
        counted = n.op("Range", n.const(0, np.int64), rows, n.const(1, np.int64))
        return n.op("Add", x, n.op("Gather", n.weight(99, 4), counted))

    assert extent(net(numbered), SHAPES) is None


def test_no_slice_would_have_too_few_rows() -> None:
    relu = net(lambda n, x: n.op("Relu", x))
    assert extent(relu, {"x": (spans(3, 5), 4)}) == "batch"
    assert extent(relu, {"x": (spans(3, 4), 4)}) is None  # 5 rows


def test_one_result_of_many_slices(tmp_path: Path) -> None:
    model = net(lambda n, x: n.op("Transpose", n.op("Relu", x), perm=[1, 0]))
    loaded = load_buckets(model.SerializeToString(), SHAPES, DEFAULTS, None, 1, lambda one: 1.0)
    assert loaded.sliced is not None
    path = tmp_path / "module.so"
    made = joined(loaded, [b.loaded.module for b in loaded.buckets])
    path.write_bytes(build_library(made, device_named("cpu")))
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    for rows in range(2, 30):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        (found,) = arrays(machine["main"](tvm.runtime.tensor(x)))
        np.testing.assert_array_equal(found, np.maximum(x, 0).T)
