"""One module of several buckets, built without kernels and called at many shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tvm.runtime.vm import VirtualMachine

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.catalogue import device_named
from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.analysis import PaddedModel
from mcfuser.graph.dynamic.bucket import DynamicModel, bucket_model
from mcfuser.graph.dynamic.buckets import LoadedBuckets, joined, load_bucket
from mcfuser.graph.dynamic.choice import Box, ChosenBuckets
from mcfuser.graph.dynamic.describe import dynamic_report
from mcfuser.graph.dynamic.slices import sliced_extent
from mcfuser.measure.tolerance import difference
from mcfuser.runtime.runner import arrays
from tests.support.dynamic_models import MODELS
from tests.support.dynamic_nets import Arrays, drawn, dynamic, run, spans
from tests.support.nets import Net

SHAPES: InputShapes = {"x": (spans(1, 3), spans(2, 9), 4), "seen": (spans(1, 3), spans(2, 9))}
BOXES = (
    Box({"batch": 1, "length": 2}, {"batch": 3, "length": 4}),
    Box({"batch": 1, "length": 5}, {"batch": 3, "length": 5}),
    Box({"batch": 1, "length": 6}, {"batch": 3, "length": 9}),
)
"""The second one has one length alone, so it takes no length at run time."""
APART = tuple(Box({"batch": n, "length": 2}, {"batch": n, "length": 9}) for n in (1, 2, 3))
"""Each has one batch alone, so none of them tells how results depend on it."""


def ends(model: DynamicModel) -> tuple[dict[str, int], dict[str, int]]:
    """The lowest and the highest extents."""
    extents = model.shapes.extents
    return {e.name: e.low for e in extents}, {e.name: e.high for e in extents}


def whole(model: DynamicModel) -> PaddedModel:
    """The model as one bucket of all shapes."""
    return bucket_model(model, *ends(model))


def loaded(boxes: tuple[Box, ...] = BOXES) -> LoadedBuckets:
    """A float16 input, a bool one, a large weight, and results of several run-time shapes."""
    net = Net(np.float16)
    x = net.input("x", "batch", "length", 4)
    seen = net.input("seen", "batch", "length", dtype=np.bool_)
    wide = net.op("Cast", x, to=TensorProto.FLOAT)
    shown = net.op(
        "Where", net.op("Unsqueeze", seen, net.ints(2)), wide, net.const(0.0, np.float32)
    )
    mean = net.op("ReduceMean", shown, axes=[1], keepdims=0)
    weight = net.const(net.random.standard_normal((4, 1 << 17)), np.float32)
    product = net.op("ReduceMax", net.op("MatMul", mean, weight), axes=[1])
    pairs = net.op("Concat", shown, shown, axis=1)
    half = net.op("Slice", x, net.ints(0), net.ints(1 << 40), net.ints(1), net.ints(2))
    model = net.model(product, pairs, half, net.op("Not", seen))
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL)
    for value, kind in zip(model.graph.output, kinds, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, None))
    prepared = dynamic(model, SHAPES)
    buckets = tuple(load_bucket(prepared, box) for box in boxes)
    return LoadedBuckets(prepared, ChosenBuckets(boxes, 1.5, 2.0), buckets, whole(prepared).results)


@pytest.fixture(scope="module")
def model() -> LoadedBuckets:
    return loaded()


@pytest.fixture(scope="module")
def library(model: LoadedBuckets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = joined(model, [b.loaded.module for b in model.buckets])
    path = tmp_path_factory.mktemp("dispatch") / "module.so"
    path.write_bytes(build_library(whole, device_named("cpu")))
    return path


@pytest.fixture(scope="module")
def machine(library: Path) -> VirtualMachine:
    return VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())


def called(machine: VirtualMachine, feeds: Arrays) -> list[NDArray[np.generic]]:
    return arrays(machine["main"](*[tvm.runtime.tensor(a) for a in feeds.values()]))


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("length", range(2, 10))
def test_the_module_computes_every_shape(
    batch: int, length: int, model: LoadedBuckets, machine: VirtualMachine
) -> None:
    point = {"batch": batch, "length": length}
    feeds = drawn(model.model, point, seed=length)
    expected = run(model.model.fixed(point), feeds)
    found = called(machine, feeds)
    assert [a.dtype for a in found] == [a.dtype for a in expected]
    assert max(map(difference, found, expected)) <= 1e-5


def test_buckets_may_have_one_extent_each(tmp_path: Path) -> None:
    model, path = loaded(APART), tmp_path / "module.so"
    made = joined(model, [b.loaded.module for b in model.buckets])
    path.write_bytes(build_library(made, device_named("cpu")))
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    for batch, length in ((1, 9), (2, 4), (3, 2)):
        point = {"batch": batch, "length": length}
        feeds = drawn(model.model, point)
        found, expected = called(machine, feeds), run(model.model.fixed(point), feeds)
        assert max(map(difference, found, expected)) <= 1e-5


def test_another_bucket_does_not_keep_what_one_wrote(
    model: LoadedBuckets, machine: VirtualMachine
) -> None:
    """Inputs are padded anew in every call: what a longer one left there is not read."""
    long, short = ({"batch": 3, "length": n} for n in (9, 6))
    called(machine, drawn(model.model, long, 1))
    feeds = drawn(model.model, short, 2)
    found = called(machine, feeds)
    assert max(map(difference, found, run(model.model.fixed(short), feeds))) <= 1e-5


@pytest.mark.parametrize(
    ("batch", "length", "words"),
    [
        (4, 5, "dimension 0 of input 'x' is 4; the module takes 1 to 3"),
        (2, 10, "dimension 1 of input 'x' is 10; the module takes 2 to 9"),
        (2, 1, "dimension 1 of input 'x' is 1; the module takes 2 to 9"),
    ],
)
def test_shapes_outside_of_the_ranges_are_refused(
    batch: int, length: int, words: str, model: LoadedBuckets, machine: VirtualMachine
) -> None:
    feeds = drawn(model.model, {"batch": batch, "length": length})
    with pytest.raises(AssertionError, match=words):
        called(machine, feeds)


def test_dimensions_of_one_extent_must_agree(model: LoadedBuckets, machine: VirtualMachine) -> None:
    feeds = drawn(model.model, {"batch": 2, "length": 5})
    feeds["seen"] = feeds["seen"][:, :4]
    words = "dimension 1 of input 'seen' is 4, and dimension 1 of input 'x' is 5; both must be"
    with pytest.raises(AssertionError, match=words):
        called(machine, feeds)


def test_a_large_weight_is_kept_once(library: Path) -> None:
    """It has 2 MiB, and three buckets read it."""
    assert library.stat().st_size < 2 * (2 << 20)


def test_the_report_has_the_run_time_shapes(model: LoadedBuckets) -> None:
    report = dynamic_report(model, [[0], [0], [0, 1]])
    assert report["inputs"][0] == {
        "name": "x", "shape": [-1, -1, 4], "extents": ["batch", "length", 4], "dtype": "float16",
    }  # fmt: skip
    assert [o["extents"] for o in report["outputs"]] == [
        ["batch", 1], ["batch", "2 * length", 4], ["batch", "(length + 1) // 2", 4],
        ["batch", "length"],
    ]  # fmt: skip
    assert report["buckets"][1] == {
        "low": {"batch": 1, "length": 5}, "high": {"batch": 3, "length": 5}, "chains": [0],
    }  # fmt: skip


@pytest.fixture(scope="module")
def slicing(model: LoadedBuckets, tmp_path_factory: pytest.TempPathFactory) -> VirtualMachine:
    extent = sliced_extent(model.model, whole(model.model))
    assert extent is not None and extent.name == "batch"
    sliced = replace(model, sliced=extent)
    assert [e["sliced"] for e in dynamic_report(sliced, [[], [], []])["extents"]] == [True, False]
    made = joined(sliced, [b.loaded.module for b in model.buckets])
    path = tmp_path_factory.mktemp("slices") / "module.so"
    path.write_bytes(build_library(made, device_named("cpu")))
    return VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())


@pytest.mark.parametrize(("batch", "length"), [(1, 2), (3, 9), (4, 5), (6, 3), (7, 9), (31, 2)])
def test_more_rows_are_computed_in_slices(
    batch: int, length: int, model: LoadedBuckets, slicing: VirtualMachine
) -> None:
    point = {"batch": batch, "length": length}
    feeds = drawn(model.model, point, seed=batch)
    found, expected = called(slicing, feeds), run(model.model.fixed(point), feeds)
    assert [a.shape for a in found] == [a.shape for a in expected]
    assert max(map(difference, found, expected)) <= 1e-5


def test_slices_are_of_one_extent_alone(model: LoadedBuckets, slicing: VirtualMachine) -> None:
    feeds = drawn(model.model, {"batch": 5, "length": 10})
    with pytest.raises(AssertionError, match="dimension 1 of input 'x' is 10; the module takes 2"):
        called(slicing, feeds)
    feeds = drawn(model.model, {"batch": 5, "length": 5})
    feeds["seen"] = feeds["seen"][:4]
    with pytest.raises(AssertionError, match="dimension 0 of input 'seen' is 4, and dimension 0"):
        called(slicing, feeds)


@pytest.mark.parametrize("name", ["convolutional", "decoder", "flattened", "recurrent"])
def test_what_is_moved_at_run_time_arrives_in_the_module(name: str, tmp_path: Path) -> None:
    """TVM computes run-time positions as onnxruntime does."""
    write, shapes = MODELS[name]
    prepared = dynamic(write(), shapes)
    low, high = ends(prepared)
    bucket = load_bucket(prepared, Box(low, high))
    made = LoadedBuckets(prepared, ChosenBuckets((bucket.box,)), (bucket,), whole(prepared).results)
    path = tmp_path / "module.so"
    path.write_bytes(build_library(joined(made, [bucket.loaded.module]), device_named("cpu")))
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    for point in (low, high, {n: (low[n] + high[n]) // 2 for n in low}):
        feeds = drawn(prepared, point)
        expected = run(prepared.fixed(point), feeds)
        assert max(map(difference, called(machine, feeds), expected)) <= 1e-5
